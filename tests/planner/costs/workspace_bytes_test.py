"""The workspace of a layer, against counting by hand.

Shapes: b rows; K, N and M channels.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.planner.costs.workspace_bytes import workspace_bytes

K, N, M = 3, 50, 7


def spec(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.float32)


def _forward(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
    hidden = tf.nn.relu(tf.matmul(x, w))
    return [tf.matmul(hidden, v), x, hidden]


def _backward(w: Any, v: Any, x: Any, hidden: Any, dy: Any) -> list[tf.Tensor]:
    dhidden = tf.matmul(dy, v, transpose_b=True)
    dhidden = tf.raw_ops.ReluGrad(gradients=dhidden, features=hidden)
    dw = tf.matmul(x, dhidden, transpose_a=True)
    dv = tf.matmul(hidden, dy, transpose_a=True)
    return [dw, dv]


def phases(b: int, forward: Any = _forward, backward: Any = _backward) -> Any:
    """Returns the phases of two products with a relu between them."""
    return SimpleNamespace(
        cast_weights=[spec(K, N), spec(N, M)],
        call_context=[],
        args=[spec(b, K)],
        residuals=[spec(b, K), spec(b, N)],
        output_gradients=[spec(b, M)],
        forward=lambda stashes: forward,
        backward=lambda: backward,
    )


@pytest.mark.parametrize("b", [1, 2, K, N, 1000])
def test_two_products_and_a_relu(b: int) -> None:
    """The hidden units and the inputs are residuals, so they count as nothing."""
    forward = [0, 0, b * M]  # The relu reuses its input's memory.
    # The gradient of the hidden units lives until the gradient of `w` exists.
    backward = [b * N, b * N, b * N + K * N, K * N + N * M]
    assert workspace_bytes(phases(b)) == tuple(4 * n for n in (*forward, *backward))


def test_a_product_does_not_reuse_its_inputs_memory() -> None:
    """It does not, though it is as large."""

    def squared(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        product = tf.matmul(wide, tf.zeros([N, N]))
        return [tf.matmul(product, v)]

    b = 5
    made = phases(b, squared)
    made.residuals = []
    made.backward = lambda: lambda w, v, dy: [dy]
    zeros = N * N
    products = [b * N, 2 * b * N + zeros, b * N + b * M]
    assert [4 * n for n in products] == list(workspace_bytes(made))


def test_views_take_nothing() -> None:
    def viewed(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        turned = tf.reshape(wide, [-1, 1])
        return [tf.identity(tf.square(turned)), wide]

    b = 5
    made = phases(b, viewed)
    made.residuals = []
    made.backward = lambda: lambda w, v, dy: [dy]
    # The product is returned, so the square takes memory of its own.
    assert list(workspace_bytes(made)) == [4 * b * N, 8 * b * N]
