"""The workspace of a layer, against counting by hand.

Shapes: b rows; K, N and M channels.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.memory.workspace import (
    bytes_by_operation,
    bytes_when_compiled,
    workspace_of,
)
from lingvo_pipe.pipeline.tracing.phases import Compilation, Part, Phases
from lingvo_pipe.pipeline.tracing.trace import CallContext, Result, Trace

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


def part_of(function: Any, *specs: tf.TensorSpec) -> Part:
    """Returns a function of placeholders as a part."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in specs]
        before = len(graph.get_operations())
        results = function(*inputs)
    return Part(graph.get_operations()[before:], results)


@pytest.mark.parametrize("b", [1, 2, K, N, 1000])
def test_two_products_and_a_relu(b: int) -> None:
    """The hidden units and the inputs are residuals, so they count as nothing."""
    w, v, x, hidden, dy = spec(K, N), spec(N, M), spec(b, K), spec(b, N), spec(b, M)
    seeds = 4 * b * M
    forward = part_of(_forward, w, v, x)
    # The relu reuses its input's memory.
    assert count(forward, 2) == [0, 0, b * M]
    backward = part_of(_backward, w, v, x, hidden, dy)
    # The gradient of the hidden units lives until the gradient of `w` exists, and the
    # given gradient of the outputs all the time.
    moments = [b * M + n for n in (b * N, b * N, b * N + K * N, K * N + N * M)]
    assert count(backward, 0, seeds) == moments
    first_half = part_of(_input_backward, w, v, x, hidden, dy)
    # Weight residuals do not count.
    assert count(first_half, 4, seeds) == [b * M, b * M, b * M + b * K]
    second_half = part_of(_weight_backward, w, v, x, hidden, dy, hidden)
    assert count(second_half, 0) == [K * N, K * N + N * M]
    # XLA's own tensors within a part are not known.
    assert bytes_when_compiled(forward, 2) == (4 * b * M,)
    assert bytes_when_compiled(backward, 0, seeds) == (seeds + 4 * (K * N + N * M),)


def count(part: Part, num_residuals: int, live: int = 0) -> list[float]:
    """Returns the numbers of a part's tensors of 4 bytes, by operation."""
    return [n / 4 for n in bytes_by_operation(part, num_residuals, live)]


def test_a_product_does_not_reuse_its_inputs_memory() -> None:
    """It does not, though it is as large."""

    def squared(w: Any, v: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        product = tf.matmul(wide, tf.zeros([N, N]))
        return [tf.matmul(product, v)]

    b = 5
    part = part_of(squared, spec(K, N), spec(N, M), spec(b, K))
    zeros = N * N
    assert count(part, 0) == [b * N, 2 * b * N + zeros, b * N + b * M]


def test_views_take_nothing() -> None:
    def viewed(w: Any, x: Any) -> list[tf.Tensor]:
        wide = tf.matmul(x, w)
        turned = tf.reshape(wide, [-1, 1])
        return [tf.identity(tf.square(turned)), wide]

    b = 5
    # The product is returned, so the square takes memory of its own.
    assert count(part_of(viewed, spec(K, N), spec(b, K)), 0) == [b * N, 2 * b * N]


@pytest.mark.parametrize("compiles", [False, True])
def test_the_parts_of_a_traced_layer(compiles: bool) -> None:
    """A traced layer counts like the functions above, in the order of its trace."""
    b = 4

    def body(theta: Any, context: Any, args: Any) -> Result:
        hidden = tf.nn.relu(tf.matmul(args[0], theta.w))
        return Result(tf.matmul(hidden, theta.v), NestedMap())

    theta = NestedMap(v=spec(N, M), w=spec(K, N))
    trace = Trace(body, theta, [True, True], CallContext(), [spec(b, K)], trains=True)
    workspace = workspace_of(Phases(trace, [True], Compilation(compiles, None)))
    seeds, gradients = b * M, b * K + K * N + N * M
    if compiles:
        assert workspace.forward == (4 * b * M,)
        assert workspace.backward == (4 * (seeds + gradients),)
        assert workspace.input_backward == (4 * (seeds + b * K),)
    else:
        assert workspace.forward == (0, 0, 4 * b * M)
        # The last operation still reads the gradient of the hidden units.
        assert workspace.backward[-1] == 4 * (seeds + gradients + b * N)
        assert max(workspace.input_backward) == 4 * (seeds + b * K)
        assert workspace.weight_backward[-1] == 4 * (K * N + N * M)
