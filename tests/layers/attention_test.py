"""Multi-head attention against the textbook, in numpy; and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.attention import (
    MultiHeadAttentionLayer,
    not_later,
    same_segment,
)
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightInit

DIM, NUM_HEADS, DIM_PER_HEAD = 6, 3, 4


def attention(**params: Any) -> Any:
    p = MultiHeadAttentionLayer.Params().Set(
        name="attention",
        dim=DIM,
        num_heads=NUM_HEADS,
        dim_per_head=DIM_PER_HEAD,
        dtype=tf.float64,
        params_init=WeightInit.Gaussian(0.7),
    )
    layer = p.Set(**params).Instantiate()
    for i, (path, variable) in enumerate(layer.VariablePaths().items()):
        if path.endswith("/b"):
            variable.assign(tf.cast(draw(variable.shape, 50 + i), variable.dtype))
    return layer


def draw(shape: Any, seed: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 1], dtype=tf.float64)


def textbook(layer: Any, x: Any, memory: Any, mask: np.ndarray) -> np.ndarray:
    """Computes one head, one example and one query at a time."""
    weights = {
        path.removeprefix("attention/"): v.numpy()
        for path, v in layer.VariablePaths().items()
    }

    def dense(name: str, y: np.ndarray) -> np.ndarray:
        return y @ weights[f"{name}/w"] + weights.get(f"{name}/b", 0.0)

    found = np.zeros([*x.shape[:2], NUM_HEADS * DIM_PER_HEAD])
    for b, t in np.ndindex(*x.shape[:2]):
        query, key = dense("query", x[b, t]), dense("key", memory[b])
        value = dense("value", memory[b])
        for n in range(NUM_HEADS):
            own = slice(n * DIM_PER_HEAD, (n + 1) * DIM_PER_HEAD)
            logits = key[:, own] @ query[own] / np.sqrt(DIM_PER_HEAD)
            shares = np.exp(logits) * mask[b, t]
            found[b, t, own] = shares / shares.sum() @ value[:, own]
    return dense("output", found)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_keys", [None, 7])
def test_it_is_the_textbooks(has_bias: bool, num_keys: int | None) -> None:
    layer = attention(has_bias=has_bias)
    x = draw([2, 5, DIM], 1)
    memory = None if num_keys is None else draw([2, num_keys, DIM], 2)
    remembered = (x if memory is None else memory).numpy()
    mask = np.random.default_rng(3).random([2, 5, remembered.shape[1]]) < 0.6
    mask[:, :, 0] = True
    for given, used in ((None, np.ones_like(mask)), (mask[:, None], mask)):
        got = layer.FProp(layer.theta, x, memory, given)
        want = textbook(layer, x.numpy(), remembered, used)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_a_query_that_sees_nothing_has_numbers_all_the_same() -> None:
    layer, x = attention(dtype=tf.float32), tf.cast(draw([2, 5, DIM], 1), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer.FProp(layer.theta, x, None, np.zeros([2, 1, 5, 5], bool))
    assert np.all(np.isfinite(y))
    assert np.all(np.isfinite(tape.gradient(y, x)))


@pytest.mark.parametrize("room", [5, 8])
def test_step_by_step_is_all_at_once(room: int) -> None:
    layer, x = attention(), draw([2, 5, DIM], 1)
    want = layer.FProp(layer.theta, x, None, not_later(5))
    states = layer.InitStates(2, room)
    specs = states.Transform(lambda s: (s.shape, s.dtype))
    step = tf.function(layer.ExtendStep, autograph=False)
    for t in range(5):
        got, states = step(layer.theta, x[:, t : t + 1], states, tf.constant(t))
        np.testing.assert_allclose(got[:, 0], want[:, t], rtol=1e-10, atol=1e-12)
        assert states.Transform(lambda s: (s.shape, s.dtype)) == specs


@pytest.mark.parametrize(("num_steps", "first"), [(1, 3), (2, 2), (1, [0, 3])])
def test_a_step_without_room_is_an_error(num_steps: int, first: Any) -> None:
    layer, x = attention(), draw([2, num_steps, DIM], 1)
    step = tf.function(layer.ExtendStep, autograph=False)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"\battention\b.*max_length"
    ):
        step(layer.theta, x, layer.InitStates(2, 3), tf.constant(first))


def test_dropout_is_on_the_shares_of_keys() -> None:
    """A query that sees itself alone sees twice itself or nothing."""
    layer = attention(keep_prob=0.5, has_bias=False, num_heads=1)
    x, mask = draw([4, 5, DIM], 1), tf.eye(5) > 0
    with ForwardContext(do_eval=True):
        whole = layer.FProp(layer.theta, x, None, mask)
    with ForwardContext(step=1, first_example=0):
        dropped = layer.FProp(layer.theta, x, None, mask)
    is_kept = np.any(dropped, -1, keepdims=True)
    np.testing.assert_allclose(dropped, 2.0 * whole * is_kept, rtol=1e-12)
    assert 0.2 < is_kept.mean() < 0.8


def test_a_query_sees_its_own_segment() -> None:
    segments = np.array([[1, 1, 2, 0], [1, 1, 1, 1]])
    memory = np.array([[1, 2, 2], [1, 0, 0]])
    mask = same_segment(tf.constant(segments), tf.constant(memory))
    assert mask.shape == (2, 1, 4, 3)
    for b, t, s in np.ndindex(2, 4, 3):
        assert bool(mask[b, 0, t, s]) == (segments[b, t] == memory[b, s])


def test_a_query_sees_no_later_key() -> None:
    np.testing.assert_array_equal(not_later(4), np.tri(4, dtype=bool))
