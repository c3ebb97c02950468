"""Masks of dropout and drop-path are functions of seed, layer, step and example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropoutLayer, DropPathLayer
from lingvo_pipe.layers.sequential import SequentialLayer

NUM_EXAMPLES = 20_000


def dropout(name: str = "drop", **params: Any) -> Any:
    p = DropoutLayer.Params().Set(name=name, keep_prob=0.5)
    return p.Set(**params).Instantiate()


def drop_path(**params: Any) -> Any:
    p = DropPathLayer.Params().Set(name="drop", keep_prob=0.6)
    return p.Set(**params).Instantiate()


def run(layer: Any, x: Any, **context: Any) -> Any:
    with ForwardContext(**{"step": 3, "first_example": 0, **context}):
        return layer(x)


EITHER = pytest.mark.parametrize("make", [dropout, drop_path])


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
def test_the_share_of_kept_elements_is_keep_prob(keep_prob: float) -> None:
    n = 40_000
    kept = mask(dropout(keep_prob=keep_prob), [10, n // 10])
    deviation = np.sqrt(n * keep_prob * (1 - keep_prob))
    assert abs(kept.sum() - n * keep_prob) < 4 * deviation
    by_example = kept.sum(axis=1)
    assert np.all(np.abs(by_example - n / 10 * keep_prob) < 4 * deviation / np.sqrt(10))


def test_masks_of_others_are_independent() -> None:
    """Two layers that keep a half each keep a quarter together."""
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


@EITHER
def test_a_layer_that_runs_twice_drops_independently(make: Any) -> None:
    """Once both calls had one mask, silently unlike Lingvo's."""

    def both() -> list[np.ndarray]:
        with ForwardContext(step=3, first_example=0):
            return [layer(tf.ones([64, 4])).numpy() for _ in range(2)]

    layer = make()
    first, second = both()
    assert (first != second).any()
    np.testing.assert_array_equal([first, second], both())


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


@EITHER
def test_dropped_elements_may_be_infinite(make: Any) -> None:
    y = run(make(), tf.fill([64, 8], float("inf"))).numpy()
    assert set(y.ravel()) == {0.0, float("inf")}


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64])
def test_every_dtype_has_the_same_mask(dtype: tf.DType) -> None:
    layer = dropout(keep_prob=0.3, fprop_dtype=dtype)
    for step in (1, 1001, 100_003):
        y = run(layer, tf.ones([16, 99], dtype), step=step)
        assert y.dtype == dtype
        expected = mask(dropout(keep_prob=0.3), [16, 99], step=step)
        np.testing.assert_array_equal(y.numpy() != 0.0, expected)


@pytest.mark.parametrize(
    ("make", "params"), [(dropout, {}), (drop_path, {}), (drop_path, {"num_steps": 9})]
)
def test_evaluation_changes_nothing_and_needs_no_step(make: Any, params: dict) -> None:
    x = tf.random.stateless_normal([3, 4], [1, 2])
    y = run(make(**params), x, do_eval=True, step=None, first_example=None)
    np.testing.assert_array_equal(y, x)


@EITHER
def test_keeping_all_changes_nothing_and_needs_no_context(make: Any) -> None:
    layer, x = make(keep_prob=1.0), tf.random.stateless_normal([3, 4], [1, 2])
    np.testing.assert_array_equal(layer(x), x)
    meta = layer.FPropMeta(layer.params, (3, 4))
    assert (meta.flops, meta.out_shapes) == (0, ((3, 4),))


@EITHER
def test_training_without_a_step_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="'drop'.*step=.*first_example="):
        make()(tf.ones([2, 3]))


def test_an_unknown_number_of_examples_is_refused() -> None:
    function = tf.function(
        lambda x: run(dropout(), x),
        input_signature=[tf.TensorSpec([None, 3])],
        autograph=False,
    )
    with pytest.raises(ValueError, match=r"'drop'.*\(None, 3\)"):
        function(tf.ones([2, 3]))


@pytest.mark.parametrize("keep_prob", [0.0, -0.1, 1.1, float("nan")])
@EITHER
def test_keep_prob_is_a_probability(make: Any, keep_prob: float) -> None:
    with pytest.raises(ValueError, match=rf"drop\.keep_prob.*\(0, 1\].*{keep_prob}"):
        make(keep_prob=keep_prob)


def _kept(layer: Any, num_examples: int = NUM_EXAMPLES, **context: Any) -> np.ndarray:
    return run(layer, tf.ones([num_examples, 1]), **context).numpy()[:, 0] != 0.0


@pytest.mark.parametrize("row_shape", [[5], [3, 4], [4, 3, 2]])
def test_an_example_is_kept_or_dropped_as_a_whole(row_shape: list[int]) -> None:
    x = tf.random.stateless_uniform([64, *row_shape], [1, 2], 1.0, 2.0)
    y = run(drop_path(), x).numpy()
    found = {len(set(np.ravel(row != 0.0))) for row in y}
    assert found == {1}
    kept = y.reshape(64, -1)[:, 0] != 0.0
    assert 0 < kept.sum() < 64
    np.testing.assert_allclose(y[kept], x.numpy()[kept] / 0.6, rtol=1e-6)
    np.testing.assert_array_equal(kept, _kept(drop_path(), 64))


def _assert_share(kept: np.ndarray, share: float) -> None:
    deviation = np.sqrt(share * (1 - share) / len(kept))
    assert abs(kept.mean() - share) <= 4 * deviation


@pytest.mark.parametrize("keep_prob", [0.1, 0.5, 0.7, 0.99])
def test_the_share_of_kept_examples_is_keep_prob(keep_prob: float) -> None:
    layer = drop_path(keep_prob=keep_prob)
    _assert_share(_kept(layer), keep_prob)
    mean = run(layer, tf.ones([NUM_EXAMPLES, 1])).numpy().mean()
    deviation = np.sqrt((1 / keep_prob - 1) / NUM_EXAMPLES)
    assert abs(mean - 1.0) < 4 * deviation, "the expected value is the input"


@pytest.mark.parametrize(
    ("depth", "step", "share"),
    [
        (1.0, 0, 1.0),
        (1.0, 100, 1.0 - 0.5 * 0.4),
        (1.0, 200, 0.6),
        (1.0, 10**9, 0.6),
        (0.5, 200, 0.8),
        (0.5, 50, 1.0 - 0.25 * 0.5 * 0.4),
        (0.05, 150, 1.0 - 0.75 * 0.05 * 0.4),
    ],
)
def test_more_are_dropped_deep_in_the_model_and_late(
    depth: float, step: int, share: float
) -> None:
    layer, x = drop_path(num_steps=200), tf.ones([NUM_EXAMPLES, 1])
    with ForwardContext(step=step, first_example=0):
        y = layer(x, tf.constant(depth, tf.float64)).numpy()[:, 0]
    _assert_share(y != 0.0, share)
    np.testing.assert_allclose(y[y != 0.0], 1.0 / share, rtol=1e-6)


def test_without_steps_the_first_is_as_the_last() -> None:
    for step in (0, 1, 1000):
        _assert_share(_kept(drop_path(), step=step), 0.6)


def test_without_a_depth_a_layer_is_the_last() -> None:
    layer, x = drop_path(num_steps=200), tf.ones([64, 1])

    def at(*depth: float) -> Any:
        with ForwardContext(step=150, first_example=0):
            return layer(x, *(tf.constant(share, tf.float64) for share in depth))

    np.testing.assert_array_equal(at(), at(1.0))
    assert np.any(at(0.1) != at(1.0))


def test_which_are_dropped_depends_on_the_example_alone() -> None:
    layer = drop_path()
    whole = _kept(layer, 12)
    for size in (1, 3, 4):
        parts = [_kept(layer, size, first_example=k) for k in range(0, 12, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    x = tf.ones([3, 12, 2])
    columns = run(layer, x, batch_dim=1).numpy() != 0.0
    np.testing.assert_array_equal(columns, np.broadcast_to(whole[:, None], x.shape))


def test_layers_and_steps_drop_independently() -> None:
    sub = [DropPathLayer.Params().Set(keep_prob=0.6)] * 2
    both = SequentialLayer.Params().Set(name="seq", sub=sub).Instantiate()
    _assert_share(_kept(both), 0.36)
    layer = drop_path()
    kept = _kept(layer)
    for other in (
        _kept(layer, step=4),
        _kept(drop_path(name="other")),
        _kept(drop_path(random_seed=1)),
        _kept(layer, first_example=NUM_EXAMPLES),
    ):
        _assert_share(kept & other, 0.36)


def test_the_gradient_passes_the_same_examples() -> None:
    layer, x = drop_path(), tf.random.stateless_normal([32, 7], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(layer, x)
    gradient = tape.gradient(y, x)
    np.testing.assert_allclose(gradient * x, y, rtol=1e-6)


def test_steps_are_positive() -> None:
    with pytest.raises(ValueError, match=r"drop\.num_steps.*\b0\b"):
        drop_path(num_steps=0)
