"""The workspace of a layer, against counting by hand.

Shapes: b rows; K, N and M channels.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.memory.call_bytes import Workspace
from lingvo_pipe.pipeline.memory.workspace import workspace_of

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


def _input_backward(w: Any, v: Any, x: Any, hidden: Any, dy: Any) -> list[tf.Tensor]:
    dhidden = tf.matmul(dy, v, transpose_b=True)
    dhidden = tf.raw_ops.ReluGrad(gradients=dhidden, features=hidden)
    return [tf.matmul(dhidden, w, transpose_b=True), x, hidden, dy, dhidden]


def _weight_backward(
    w: Any, v: Any, x: Any, hidden: Any, dy: Any, dhidden: Any
) -> list[tf.Tensor]:
    return [tf.matmul(x, dhidden, transpose_a=True), tf.matmul(hidden, dy, True)]


def phases(b: int, forward: Any = _forward, backward: Any = _backward) -> Any:
    """Returns the phases of two products with a relu between them."""
    return SimpleNamespace(
        cast_weights=[spec(K, N), spec(N, M)],
        call_context=[],
        args=[spec(b, K)],
        residuals=[spec(b, K), spec(b, N)],
        weight_residuals=[spec(b, K), spec(b, N), spec(b, M), spec(b, N)],
        output_gradients=[spec(b, M)],
        forward=lambda stashes: forward,
        backward=lambda: backward,
        input_backward=lambda: _input_backward,
        weight_backward=lambda: _weight_backward,
    )


def without_residuals(made: Any) -> None:
    made.residuals, made.weight_residuals = [], []
    made.backward = made.input_backward = lambda: lambda w, v, dy: [dy]
    made.weight_backward = lambda: lambda w, v: [w, v]


@pytest.mark.parametrize("b", [1, 2, K, N, 1000])
def test_two_products_and_a_relu(b: int) -> None:
    """The hidden units and the inputs are residuals, so they count as nothing."""
    forward = [0, 0, b * M]  # The relu reuses its input's memory.
    # The gradient of the hidden units lives until the gradient of `w` exists, and the
    # given gradient of the outputs all the time.
    backward = [b * M + n for n in (b * N, b * N, b * N + K * N, K * N + N * M)]
    first_half = [b * M, b * M, b * M + b * K]  # Weight residuals do not count.
    second_half = [K * N, K * N + N * M]
    found = [forward, backward, first_half, second_half]
    assert workspace_of(phases(b)) == Workspace(
        *(tuple(4 * n for n in x) for x in found)
    )


def test_a_product_does_not_reuse_its_inputs_memory() -> None:
    """It does not, though it is as large."""

    def squared(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        product = tf.matmul(wide, tf.zeros([N, N]))
        return [tf.matmul(product, v)]

    b = 5
    made = phases(b, squared)
    without_residuals(made)
    zeros = N * N
    products = [b * N, 2 * b * N + zeros, b * N + b * M]
    assert [4 * n for n in products] == list(workspace_of(made).forward)


def test_views_take_nothing() -> None:
    def viewed(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        turned = tf.reshape(wide, [-1, 1])
        return [tf.identity(tf.square(turned)), wide]

    b = 5
    made = phases(b, viewed)
    without_residuals(made)
    # The product is returned, so the square takes memory of its own.
    assert list(workspace_of(made).forward) == [4 * b * N, 8 * b * N]
