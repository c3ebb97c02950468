"""Norms and clipping agree with NumPy, with the same bytes on any devices."""

import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.optim.gradient_clipping import (
    clip_by_each_norm,
    clip_by_global_norm,
    global_norm,
)

RANDOM = np.random.default_rng(0)
VALUES = [RANDOM.normal(size=shape) for shape in ([30, 20], [7], [], [5, 1, 9])]
NORM = np.sqrt(sum(np.sum(value**2) for value in VALUES))


def clipped(
    largest,
    devices=(0, 1, 2, 3),
    dtype=tf.float64,
    values=VALUES,
    function=clip_by_global_norm,
):
    @tf.function(autograph=False)
    def clip():
        gradients = []
        for value, device in zip(values, devices, strict=True):
            with tf.device(f"CPU:{device}"):
                gradients.append(tf.constant(value, dtype))
        return function(gradients, variables, largest)

    variables = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(f"CPU:{device}"):
            variables.append(tf.Variable(tf.zeros(np.shape(value), dtype)))
    return [gradient.numpy() for gradient in clip()]


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32, tf.bfloat16])
def test_larger_gradients_are_scaled_to_the_norm(dtype):
    tolerance = {8: 1e-14, 4: 1e-6, 2: 2e-2}[dtype.size]
    for got, value in zip(clipped(0.7, dtype=dtype), VALUES, strict=True):
        assert got.dtype == dtype.as_numpy_dtype
        want = value * 0.7 / NORM
        np.testing.assert_allclose(got.astype(np.float64), want, tolerance, tolerance)


@pytest.mark.parametrize("largest", [NORM * 1.001, 41.0, 1e30])
def test_smaller_gradients_keep_their_bytes(largest):
    for got, value in zip(clipped(max(largest, 41.0)), VALUES, strict=True):
        np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
def test_devices_do_not_matter(dtype):
    want = [gradient.tobytes() for gradient in clipped(0.7, [0, 0, 0, 0], dtype)]
    for devices in ([0, 0, 1, 1], [3, 2, 1, 0]):
        assert [g.tobytes() for g in clipped(0.7, devices, dtype)] == want


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_gradient_that_is_not_finite_spoils_all(wrong):
    values = [value.copy() for value in VALUES]
    values[1][3] = wrong
    for got in clipped(0.7, values=values):
        assert np.isnan(got).all()


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32, tf.bfloat16])
def test_each_larger_gradient_is_scaled_to_the_norm(dtype):
    tolerance = {8: 1e-14, 4: 1e-6, 2: 2e-2}[dtype.size]
    norms = [float(np.linalg.norm(value)) for value in VALUES]
    largest = 3.0
    assert min(norms) < largest < max(norms)
    found = clipped(largest, dtype=dtype, function=clip_by_each_norm)
    for got, value, norm in zip(found, VALUES, norms, strict=True):
        want = value * min(1.0, largest / norm)
        np.testing.assert_allclose(got.astype(np.float64), want, tolerance, tolerance)
        if norm < largest:
            np.testing.assert_array_equal(got, value.astype(dtype.as_numpy_dtype))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_clipping_each_spoils_only_the_one_that_is_not_finite(wrong):
    values = [value.copy() for value in VALUES]
    values[1][3] = wrong
    found = clipped(0.7, values=values, function=clip_by_each_norm)
    assert [np.isfinite(got).all() for got in found] == [True, False, True, True]
    assert np.isnan(found[1]).all()


DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
NUMBERS = np.arange(1.0, 7.0).reshape([3, 2])


def _norm(spoilt: str = "", value: float = 1.0, index: int = 0) -> float:
    """Returns the norm of a gradient per dtype; one holds `value` at an index."""
    variables, gradients = [], []
    for i, dtype in enumerate(DTYPES):
        numbers = NUMBERS.copy()
        if dtype.name == spoilt:
            numbers.flat[index] = value
        with tf.device(f"/CPU:{i % 2}"):
            variables.append(tf.Variable(tf.zeros([3, 2], dtype)))
        gradients.append(tf.constant(numbers, dtype))
    return float(tf.function(lambda: global_norm(gradients, variables))())


def test_the_norm_is_that_of_all_numbers_together() -> None:
    assert _norm() == pytest.approx(np.linalg.norm([NUMBERS] * len(DTYPES)), rel=1e-7)
    assert _norm("float64", 1e30) == pytest.approx(1e30)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_number_that_is_not_finite_is_found(value: float) -> None:
    for dtype in DTYPES:
        for index in (0, 5):
            assert not math.isfinite(_norm(dtype.name, value, index))


def test_large_numbers_are_finite() -> None:
    """Even if their squares are not finite in their own dtype."""
    large = tf.fill([9], tf.constant(6e4, tf.float16))
    norm = global_norm([large], [tf.Variable(tf.zeros([9], tf.float16))])
    assert float(norm) == pytest.approx(3 * float(large[0]))
