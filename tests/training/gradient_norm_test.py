"""The norm of gradients is NumPy's, and finite as they are, wherever they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.gradient_norm import global_norm

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
NUMBERS = np.arange(1.0, 7.0).reshape([3, 2])


def _norm(spoilt: str = "", value: float = 1.0, place: int = 0) -> float:
    """Of a gradient of each dtype, one of which holds `value` somewhere."""
    variables, gradients = [], []
    for i, dtype in enumerate(DTYPES):
        numbers = NUMBERS.copy()
        if dtype.name == spoilt:
            numbers.flat[place] = value
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
        for place in (0, 5):
            assert not math.isfinite(_norm(dtype.name, value, place))


def test_large_numbers_are_finite() -> None:
    """Even where their squares are not in their own dtype."""
    large = tf.fill([9], tf.constant(6e4, tf.float16))
    norm = global_norm([large], [tf.Variable(tf.zeros([9], tf.float16))])
    assert float(norm) == pytest.approx(3 * float(large[0]))
