"""Drop-path takes whole examples, as often as its schedule says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.drop_path import DropPathLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import SequentialLayer

NUM_EXAMPLES = 20_000


def _layer(**params: Any) -> Any:
    p = DropPathLayer.Params().Set(name="drop", keep_prob=0.6)
    return p.Set(**params).Instantiate()


def _run(layer: Any, x: Any, **context: Any) -> Any:
    with ForwardContext(**{"step": 3, "first_example": 0, **context}):
        return layer(x)


def _kept(layer: Any, num_examples: int = NUM_EXAMPLES, **context: Any) -> np.ndarray:
    return _run(layer, tf.ones([num_examples, 1]), **context).numpy()[:, 0] != 0.0


@pytest.mark.parametrize("row_shape", [[5], [3, 4], [4, 3, 2]])
def test_an_example_is_kept_or_dropped_as_a_whole(row_shape: list[int]) -> None:
    x = tf.random.stateless_uniform([64, *row_shape], [1, 2], 1.0, 2.0)
    y = _run(_layer(), x).numpy()
    found = {len(set(np.ravel(row != 0.0))) for row in y}
    assert found == {1}
    kept = y.reshape(64, -1)[:, 0] != 0.0
    assert 0 < kept.sum() < 64
    np.testing.assert_allclose(y[kept], x.numpy()[kept] / 0.6, rtol=1e-6)
    np.testing.assert_array_equal(kept, _kept(_layer(), 64))


def _assert_share(kept: np.ndarray, share: float) -> None:
    deviation = np.sqrt(share * (1 - share) / len(kept))
    assert abs(kept.mean() - share) <= 4 * deviation


@pytest.mark.parametrize("keep_prob", [0.1, 0.5, 0.7, 0.99])
def test_as_many_are_kept_as_should_be(keep_prob: float) -> None:
    layer = _layer(keep_prob=keep_prob)
    _assert_share(_kept(layer), keep_prob)
    mean = _run(layer, tf.ones([NUM_EXAMPLES, 1])).numpy().mean()
    deviation = np.sqrt((1 / keep_prob - 1) / NUM_EXAMPLES)
    assert abs(mean - 1.0) < 4 * deviation, "what is expected is the input"


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
    layer, x = _layer(num_steps=200), tf.ones([NUM_EXAMPLES, 1])
    with ForwardContext(step=step, first_example=0):
        y = layer(x, tf.constant(depth, tf.float64)).numpy()[:, 0]
    _assert_share(y != 0.0, share)
    np.testing.assert_allclose(y[y != 0.0], 1.0 / share, rtol=1e-6)


def test_without_steps_the_first_is_as_the_last() -> None:
    for step in (0, 1, 1000):
        _assert_share(_kept(_layer(), step=step), 0.6)


def test_without_a_depth_a_layer_is_the_last() -> None:
    layer, x = _layer(num_steps=200), tf.ones([64, 1])
    with ForwardContext(step=150, first_example=0):
        last = layer(x, tf.constant(1.0, tf.float64))
        np.testing.assert_array_equal(layer(x), last)
        assert np.any(layer(x, tf.constant(0.1, tf.float64)) != last)


def test_which_are_dropped_depends_on_the_example_alone() -> None:
    layer = _layer()
    whole = _kept(layer, 12)
    for size in (1, 3, 4):
        parts = [_kept(layer, size, first_example=k) for k in range(0, 12, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    x = tf.ones([3, 12, 2])
    columns = _run(layer, x, batch_dim=1).numpy() != 0.0
    np.testing.assert_array_equal(columns, np.broadcast_to(whole[:, None], x.shape))


def test_layers_and_steps_drop_independently() -> None:
    sub = [DropPathLayer.Params().Set(keep_prob=0.6)] * 2
    both = SequentialLayer.Params().Set(name="seq", sub=sub).Instantiate()
    _assert_share(_kept(both), 0.36)
    layer = _layer()
    kept = _kept(layer)
    for other in (
        _kept(layer, step=4),
        _kept(_layer(name="other")),
        _kept(_layer(random_seed=1)),
        _kept(layer, first_example=NUM_EXAMPLES),
    ):
        _assert_share(kept & other, 0.36)


def test_the_gradient_passes_the_same_examples() -> None:
    layer, x = _layer(), tf.random.stateless_normal([32, 7], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _run(layer, x)
    gradient = tape.gradient(y, x)
    np.testing.assert_allclose(gradient * x, y, rtol=1e-6)


def test_what_is_dropped_may_be_infinite() -> None:
    y = _run(_layer(), tf.fill([64, 3], float("inf"))).numpy()
    assert set(y.ravel()) == {0.0, float("inf")}


@pytest.mark.parametrize("params", [{}, {"num_steps": 100}])
def test_evaluation_changes_nothing_and_needs_no_step(params: dict[str, int]) -> None:
    x = tf.random.stateless_normal([3, 4], [1, 2])
    y = _run(_layer(**params), x, do_eval=True, step=None, first_example=None)
    np.testing.assert_array_equal(y, x)


def test_keeping_all_changes_nothing_and_needs_no_context() -> None:
    x = tf.random.stateless_normal([3, 4], [1, 2])
    np.testing.assert_array_equal(_layer(keep_prob=1.0)(x), x)
    meta = DropPathLayer.FPropMeta(DropPathLayer.Params(), (3, 4))
    assert (meta.flops, meta.out_shapes) == (0, ((3, 4),))


def test_training_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="'drop'.*step=.*first_example="):
        _layer()(tf.ones([2, 3]))


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, float("nan")])
def test_shares_are_shares(value: float) -> None:
    with pytest.raises(ValueError, match=r"keep_prob.*\(0, 1\].*\bdrop\b"):
        _layer(keep_prob=value)


def test_steps_are_positive() -> None:
    with pytest.raises(ValueError, match=r"num_steps.*\bdrop\b.*\b0\b"):
        _layer(num_steps=0)
