"""Dropout's mask is a function of seed, layer, step and example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import SequentialLayer


def dropout(name: str = "drop", **params: Any) -> Any:
    p = DropoutLayer.Params().Set(name=name, keep_prob=0.5)
    return p.Set(**params).Instantiate()


def run(layer: Any, x: Any, **context: Any) -> Any:
    with ForwardContext(**{"step": 3, "first_example": 0, **context}):
        return layer(x)


def mask(layer: Any, shape: list[int], **context: Any) -> np.ndarray:
    return run(layer, tf.ones(shape), **context).numpy() != 0.0


@pytest.mark.parametrize("row_shape", [[3], [5, 2], [7, 1, 3]])
def test_a_mask_does_not_depend_on_how_the_batch_is_split(row_shape: list[int]) -> None:
    layer = dropout()
    whole = mask(layer, [6, *row_shape])
    for size in (1, 2, 3):
        parts = [
            mask(layer, [size, *row_shape], first_example=start)
            for start in range(0, 6, size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("keep_prob", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_should_be(keep_prob: float) -> None:
    n = 40_000
    kept = mask(dropout(keep_prob=keep_prob), [10, n // 10])
    deviation = np.sqrt(n * keep_prob * (1 - keep_prob))
    assert abs(kept.sum() - n * keep_prob) < 4 * deviation
    by_example = kept.sum(axis=1)
    assert np.all(np.abs(by_example - n / 10 * keep_prob) < 4 * deviation / np.sqrt(10))


def test_masks_of_others_are_independent() -> None:
    """Two layers that keep a half keep a quarter together."""
    shape, layer = [10, 4000], dropout()
    kept = mask(layer, shape)
    others = [
        mask(dropout("other"), shape),
        mask(dropout(random_seed=1), shape),
        mask(layer, shape, step=4),
        mask(layer, shape, first_example=10),
        np.roll(kept, 1, axis=0),
    ]
    for other in others:
        assert np.mean(kept & other) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("step", [1, 1000, 2**24 + 1])
def test_layers_in_sequence_and_micro_batches_never_share_a_mask(step: int) -> None:
    sub = [DropoutLayer.Params().Set(keep_prob=0.5)] * 2
    layer = SequentialLayer.Params().Set(name="seq", sub=sub).Instantiate()
    masks = [
        mask(layer, [2, 500], step=step, first_example=first_example)
        for first_example in range(0, 64, 2)
    ]
    assert np.mean(masks) == pytest.approx(0.25, abs=0.02)
    assert len({m.tobytes() for m in masks}) == 32


def test_what_is_kept_is_scaled() -> None:
    x = tf.random.stateless_normal([8, 1000], [1, 2]) + 3.0
    y = run(dropout(keep_prob=0.8), x).numpy()
    np.testing.assert_allclose(y[y != 0], x.numpy()[y != 0] / 0.8, rtol=1e-6)
    assert y.mean() == pytest.approx(3.0, rel=0.03)


def test_the_gradient_passes_the_same_mask() -> None:
    layer, x = dropout(keep_prob=0.8), tf.random.stateless_normal([5, 7], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(layer, x)
    gradient = tape.gradient(y, x)
    np.testing.assert_allclose(gradient * x, y, rtol=1e-6)
    assert 0 < np.sum(y == 0.0) < 35


def test_what_is_dropped_may_be_infinite() -> None:
    x = tf.fill([4, 8], float("inf"))
    y = run(dropout(), x).numpy()
    assert set(y.ravel()) == {0.0, float("inf")}


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64])
def test_every_dtype_has_the_same_mask(dtype: tf.DType) -> None:
    layer = dropout(keep_prob=0.3, fprop_dtype=dtype)
    for step in (1, 1001, 100_003):
        y = run(layer, tf.ones([16, 99], dtype), step=step)
        assert y.dtype == dtype
        expected = mask(dropout(keep_prob=0.3), [16, 99], step=step)
        np.testing.assert_array_equal(y.numpy() != 0.0, expected)


def test_evaluation_changes_nothing_and_needs_no_step() -> None:
    x = tf.random.stateless_normal([3, 4], [1, 2])
    y = run(dropout(), x, do_eval=True, step=None, first_example=None)
    np.testing.assert_array_equal(y, x)


def test_keeping_all_changes_nothing_and_needs_no_context() -> None:
    x = tf.random.stateless_normal([3, 4], [1, 2])
    np.testing.assert_array_equal(dropout(keep_prob=1.0)(x), x)
    meta = DropoutLayer.FPropMeta(DropoutLayer.Params(), (3, 4))
    assert (meta.flops, meta.out_shapes) == (0, ((3, 4),))


def test_training_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="'drop'.*step=.*first_example="):
        dropout()(tf.ones([2, 3]))


def test_an_unknown_number_of_examples_is_refused() -> None:
    function = tf.function(
        lambda x: run(dropout(), x),
        input_signature=[tf.TensorSpec([None, 3])],
        autograph=False,
    )
    with pytest.raises(ValueError, match=r"'drop'.*\(None, 3\)"):
        function(tf.ones([2, 3]))


@pytest.mark.parametrize("keep_prob", [0.0, -0.1, 1.1, float("nan")])
def test_keep_prob_is_a_probability(keep_prob: float) -> None:
    with pytest.raises(ValueError, match=r"keep_prob.*\(0, 1\].*\bdrop\b"):
        dropout(keep_prob=keep_prob)
