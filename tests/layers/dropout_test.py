"""Masks of dropout and drop-path are functions of seed, layer, step and example.

`every_layer_test` shows that they do not depend on how the batch is split, and that
gradients pass the same masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropoutLayer, DropPathLayer
from lingvo_pipe.layers.keras_layer import KerasLayer
from lingvo_pipe.layers.sequential import SeqLayer, SequentialLayer
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

NUM_EXAMPLES = 20_000


def dropout(**params: Any) -> Any:
    p = DropoutLayer.Params().Set(name="drop", keep_prob=0.6)
    return p.Set(**params).Instantiate()


def drop_path(**params: Any) -> Any:
    p = DropPathLayer.Params().Set(name="drop", keep_prob=0.6)
    return p.Set(**params).Instantiate()


def run(layer: Any, x: Any, *depth: tf.Tensor, **context: Any) -> Any:
    with ForwardContext(**{"step": 3, "first_example": 0, **context}):
        return layer(x, *depth)


EITHER = pytest.mark.parametrize("make", [dropout, drop_path])


def mask(
    layer: Any, num_examples: int = NUM_EXAMPLES, width: int = 1, **context: Any
) -> np.ndarray:
    return run(layer, tf.ones([num_examples, width]), **context).numpy() != 0.0


def assert_share(kept: np.ndarray, share: float) -> None:
    deviation = np.sqrt(share * (1 - share) / kept.size)
    assert abs(kept.mean() - share) <= 4 * deviation


@pytest.mark.parametrize("keep_prob", [0.1, 0.5, 0.99])
@EITHER
def test_the_share_that_is_kept_is_keep_prob(make: Any, keep_prob: float) -> None:
    layer = make(keep_prob=keep_prob)
    y = run(layer, tf.ones([NUM_EXAMPLES, 1])).numpy()
    assert_share(y != 0.0, keep_prob)
    np.testing.assert_allclose(y[y != 0.0], 1.0 / keep_prob, rtol=1e-6)


def test_elements_of_an_example_are_dropped_independently() -> None:
    kept = mask(dropout(), 10, 4000)
    for row in (*kept, kept[:, ::2] & kept[:, 1::2]):
        assert_share(row, 0.6 if row.ndim == 1 else 0.36)


@EITHER
def test_masks_of_others_are_independent(make: Any) -> None:
    layer = make()
    kept = mask(layer)
    others: list[tuple[Any, dict[str, int]]] = [
        (make(name="other"), {}),
        (make(random_seed=1), {}),
        (layer, {"step": 4}),
        (layer, {"first_example": NUM_EXAMPLES}),
    ]
    for other, context in others:
        assert_share(kept & mask(other, **context), 0.36)
    assert_share(kept & np.roll(kept, 1, axis=0), 0.36)


@pytest.mark.parametrize("step", [1, 2**24 + 1])
@pytest.mark.parametrize("cls", [DropoutLayer, DropPathLayer])
def test_layers_in_sequence_and_micro_batches_never_share_a_mask(
    cls: Any, step: int
) -> None:
    sub = [cls.Params().Set(keep_prob=0.6)] * 2
    layer = SequentialLayer.Params().Set(name="seq", sub=sub).Instantiate()
    masks = [
        mask(layer, 200, step=step, first_example=first)
        for first in range(0, NUM_EXAMPLES, 200)
    ]
    assert_share(np.concatenate(masks), 0.36)
    assert len({m.tobytes() for m in masks}) == len(masks)


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


@EITHER
def test_what_is_kept_is_scaled(make: Any) -> None:
    x = tf.random.stateless_normal([8, 1000], [1, 2]) + 30.0
    y = run(make(keep_prob=0.8), x).numpy()
    np.testing.assert_allclose(y[y != 0], x.numpy()[y != 0] / 0.8, rtol=1e-6)


@EITHER
def test_dropped_elements_may_be_infinite(make: Any) -> None:
    y = run(make(), tf.fill([64, 8], float("inf"))).numpy()
    assert set(y.ravel()) == {0.0, float("inf")}


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64])
def test_every_dtype_has_the_same_mask(dtype: tf.DType) -> None:
    layer = dropout(keep_prob=0.3, fprop_dtype=dtype)
    for step in (1, 100_003):
        y = run(layer, tf.ones([16, 99], dtype), step=step)
        assert y.dtype == dtype
        expected = mask(dropout(keep_prob=0.3), 16, 99, step=step)
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


@pytest.mark.parametrize("row_shape", [[5], [4, 3, 2]])
def test_an_example_is_kept_or_dropped_as_a_whole(row_shape: list[int]) -> None:
    y = run(drop_path(), tf.ones([64, *row_shape])).numpy().reshape(64, -1)
    np.testing.assert_array_equal(y != 0.0, np.tile(mask(drop_path(), 64), y.shape[1]))


@pytest.mark.parametrize("cls", [DropoutLayer, DropPathLayer])
def test_merged_rows_are_dropped_as_in_a_pipeline(cls: Any) -> None:
    """A pipeline knows the number of examples."""
    dims = 5, 3
    merge = FnLayer.Params().Set(fn=lambda x: tf.reshape(x, [-1, dims[1]]))
    split = FnLayer.Params().Set(fn=lambda x: tf.reshape(x, [-1, *dims]))
    cells = [merge, cls.Params().Set(name="drop", keep_prob=0.5), split]
    x = tf.ones([16, *dims])
    layer = SequentialLayer.Params().Set(name="net", sub=cells).Instantiate()
    want = run(layer, x, num_rows=16).numpy()
    plain = SeqLayer.Params().Set(name="net", cell_tpl=cells).Instantiate()
    np.testing.assert_array_equal(run(plain, x), want)
    in_keras = KerasLayer(layer)
    in_keras._step.assign(2)
    np.testing.assert_array_equal(in_keras(x, training=True), want)
    kept = want.reshape(16, -1) != 0.0
    if cls is DropPathLayer:
        np.testing.assert_array_equal(kept, kept[:, :1] & np.ones([16, 15], bool))
    assert 0 < np.count_nonzero(kept[:, 0]) < 16


@pytest.mark.parametrize("cls", [DropoutLayer, DropPathLayer])
@pytest.mark.parametrize("keeps_rows", [False, True])
def test_a_prologue_draws_as_it_does_alone(cls: Any, keeps_rows: bool) -> None:
    """In a pipeline, without one, and in a Keras model, if its rows merge or not."""
    merge = FnLayer.Params().Set(fn=lambda x: tf.reshape(x, [-1, 3]))
    split = FnLayer.Params().Set(fn=lambda x: tf.reshape(x, [-1, 5, 3]))
    drop = cls.Params().Set(name="drop", keep_prob=0.5)
    before = [merge, drop, split] if keeps_rows else [merge, drop]
    cells = [drop.Copy().Set(name="again")]
    parts = {"name": "net", "before_tpl": before, "cell_tpl": cells}
    alone = SeqLayer.Params().Set(**parts).Instantiate()
    pipeline = PipeliningLayer.Params().Set(**parts, num_micro_batches=1)
    x = tf.ones([16, 5, 3])
    expected = run(alone, x).numpy()
    np.testing.assert_array_equal(run(pipeline.Instantiate(), x), expected)
    in_keras = KerasLayer(alone)
    in_keras._step.assign(2)
    np.testing.assert_array_equal(in_keras(x, training=True), expected)


def test_examples_may_be_another_dimension() -> None:
    x = tf.ones([3, 12, 2])
    columns = run(drop_path(), x, batch_dim=1).numpy() != 0.0
    np.testing.assert_array_equal(
        columns, np.broadcast_to(mask(drop_path(), 12), x.shape)
    )


@pytest.mark.parametrize(
    ("depth", "step", "share"),
    [
        (1.0, 0, 1.0),
        (1.0, 100, 1.0 - 0.5 * 0.4),
        (1.0, 200, 0.6),
        (1.0, 10**9, 0.6),
        (0.5, 200, 0.8),
        (0.05, 150, 1.0 - 0.75 * 0.05 * 0.4),
    ],
)
def test_more_are_dropped_deep_in_the_model_and_late(
    depth: float, step: int, share: float
) -> None:
    layer, x = drop_path(num_steps=200), tf.ones([NUM_EXAMPLES, 1])
    y = run(layer, x, tf.constant(depth, tf.float64), step=step).numpy()
    assert_share(y != 0.0, share)
    np.testing.assert_allclose(y[y != 0.0], 1.0 / share, rtol=1e-6)


def test_without_steps_the_first_is_as_the_last() -> None:
    for step in (0, 1000):
        assert_share(mask(drop_path(), step=step), 0.6)


def test_without_a_depth_a_layer_is_the_last() -> None:
    layer, x = drop_path(num_steps=200), tf.ones([64, 1])
    first, last = (tf.constant(depth, tf.float64) for depth in (0.1, 1.0))
    np.testing.assert_array_equal(
        run(layer, x, step=150), run(layer, x, last, step=150)
    )
    assert np.any(run(layer, x, first, step=150) != run(layer, x, last, step=150))
