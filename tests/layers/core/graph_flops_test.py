"""Operations are counted by their shapes, products forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.graph_flops import (
    graph_flops,
    multiply_adds,
    unknown_loops,
)

B, M, K, N = 2, 3, 5, 7
H, W, C, D = 4, 6, 3, 8


def matmul(transpose_a: bool, transpose_b: bool) -> Callable[..., tf.Tensor]:
    return lambda a, b: tf.matmul(a, b, transpose_a, transpose_b)


def einsum(equation: str) -> Callable[..., tf.Tensor]:
    return lambda a, b: tf.einsum(equation, a, b)


def convolution(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(x, w, 1, "SAME")


def depthwise(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")


def volume_convolution(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv3d(x, w, [1] * 5, "SAME")


CASES = [
    (matmul(False, False), [M, K], [K, N], M * K * N),
    (matmul(True, False), [K, M], [K, N], M * K * N),
    (matmul(False, True), [M, K], [N, K], M * K * N),
    (matmul(True, True), [K, M], [N, K], M * K * N),
    (matmul(False, False), [B, M, K], [B, K, N], B * M * K * N),
    (matmul(True, False), [B, 4, K, M], [B, 4, K, N], B * 4 * M * K * N),
    (einsum("bmk,kn->bmn"), [B, M, K], [K, N], B * M * K * N),
    (einsum("bmk,bnk->bmn"), [B, M, K], [B, N, K], B * M * K * N),
    (einsum("...k,kn->...n"), [B, M, K], [K, N], B * M * K * N),
    (convolution, [B, H, W, C], [3, 3, C, D], B * H * W * 9 * C * D),
    (volume_convolution, [B, 5, H, W, C], [2, 2, 2, C, D], B * 5 * H * W * 8 * C * D),
    (depthwise, [B, H, W, C], [3, 3, C, 2], B * H * W * 9 * C * 2),
]


@pytest.mark.parametrize(("product", "x", "y", "expected"), CASES)
def test_each_gradient_takes_as_many_as_the_product(
    product: Callable[..., tf.Tensor], x: list[int], y: list[int], expected: int
) -> None:
    with tf.Graph().as_default() as graph:
        a, b = (tf.compat.v1.placeholder(tf.float32, shape) for shape in (x, y))
        made = product(a, b)
        assert multiply_adds(graph.get_operations()) == expected
        forward = set(graph.get_operations())
        tf.gradients(made, [a, b])
        backward = [op for op in graph.get_operations() if op not in forward]
    assert multiply_adds(backward) == 2 * expected


def test_products_of_unknown_shapes_and_other_operations_do_not_count() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, K])
        tf.nn.relu(tf.matmul(x, tf.ones([K, N])))
    assert multiply_adds(graph.get_operations()) == 0


def _flops(function: Callable[..., Any], *shapes: list[int]) -> int:
    with tf.Graph().as_default() as graph:
        function(*[tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes])
    return graph_flops(graph.get_operations())


def _repeated(x: tf.Tensor, num_iterations: int) -> tf.Tensor:
    (x,) = tf.while_loop(
        lambda _: True, lambda x: [tf.tanh(x)], [x], maximum_iterations=num_iterations
    )
    return x


def _while_below(x: tf.Tensor) -> tf.Tensor:
    """Runs a loop with a float counter. Loops of `tf.while_loop` have integer ones."""
    inputs = [tf.constant(0.0), tf.constant(3.0), x]
    specs = list(map(tf.TensorSpec.from_tensor, inputs))
    cond = tf.function(lambda i, n, x: i < n).get_concrete_function(*specs)
    body = tf.function(lambda i, n, x: (i + 1.0, n, tf.tanh(x)))
    body = body.get_concrete_function(*specs)
    return tf.raw_ops.StatelessWhile(input=inputs, cond=cond, body=body)[2]


def _moved(x: tf.Tensor) -> tf.Tensor:
    parts = tf.split(tf.transpose(tf.reshape(x, [K, M])), M)
    x = tf.stack([tf.gather(tf.concat(parts, 0), [0, 1]), tf.zeros([2, K])])
    x = tf.stop_gradient(tf.cast(x[tf.newaxis, :1], tf.float64))
    return tf.pad(tf.tile(tf.squeeze(x, 0), [2, 1, 1]), [[1, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (_moved, 0),
        (tf.argmax, M * K),
        (lambda x: tf.reduce_sum(x) + 1.0, M * K + 1),
        (lambda x: tf.cast(x, tf.int32) + 1, 0),
        (lambda x: x < tf.zeros([3, 1, 1]), 3 * M * K),
        (tf.nn.softmax, 5 * M * K),
        (lambda x: tf.matmul(x, tf.ones([K, N])), 2 * M * K * N),
        (
            lambda x: tf.einsum("kn,...mk->...mn", tf.ones([K, N]), x[tf.newaxis]),
            2 * M * K * N,
        ),
        (tf.function(tf.tanh), M * K),
        (lambda x: tf.while_loop(lambda _: True, tf.tanh, [x]), M * K),
        (lambda x: _repeated(x, 4), 4 * M * K),
        (_while_below, M * K + 2),
        (lambda x: tf.map_fn(tf.tanh, x), M * K),
        (lambda x: tf.map_fn(lambda row: tf.map_fn(tf.tanh, row), x), M * K),
        (lambda x: tf.scan(tf.add, x), M * K),
    ],
)
def test_flops_of_operations(function: Callable[..., Any], flops: int) -> None:
    assert _flops(function, [M, K]) == flops


def test_multiply_adds_of_a_loop_are_those_of_all_iterations() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [B, M, K])
        tf.map_fn(lambda row: tf.matmul(row, tf.ones([K, N])), x)
    operations = graph.get_operations()
    assert multiply_adds(operations) == B * M * K * N
    assert multiply_adds(operations, in_functions=False) == 0


@pytest.mark.parametrize("rank", [2, 3])
def test_products_of_two_dtypes_count(rank: int) -> None:
    with tf.Graph().as_default() as graph:
        a = tf.compat.v1.placeholder(tf.bfloat16, [B, M, K][-rank:])
        b = tf.compat.v1.placeholder(tf.float32, [B, K, N][-rank:])
        tf.matmul(a, b, output_type=tf.float32)
    expected = (B if rank == 3 else 1) * M * K * N
    assert multiply_adds(graph.get_operations()) == expected


def test_a_sparse_product_takes_a_row_for_each_value() -> None:
    with tf.Graph().as_default() as graph:
        sparse = tf.SparseTensor([[0, 1], [2, 3]], [1.0, 2.0], [M, K])
        tf.sparse.sparse_dense_matmul(sparse, tf.ones([K, N]))
    assert multiply_adds(graph.get_operations()) == 2 * N


@pytest.mark.parametrize(
    ("rows", "is_unknown"), [(M, False), (None, True)], ids=["static", "unknown"]
)
def test_loops_of_unknown_length_are_found(rows: int | None, is_unknown: bool) -> None:
    """Also within functions, and not where they take no flops."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [rows, K])
        tf.function(lambda x: tf.map_fn(tf.tanh, x), autograph=False)(x)
        tf.map_fn(tf.identity, x)
    loops = list(unknown_loops(graph.get_operations()))
    assert len(loops) == is_unknown


def test_a_recurrent_layer_of_keras_counts_all_steps() -> None:
    steps, units = 100, 4
    layer = keras.layers.LSTM(units)
    function = tf.function(layer, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([B, steps, C])).graph
    products = B * steps * (C + units) * 4 * units
    # Keras traces one step more, outside of the loop.
    assert products <= multiply_adds(graph.get_operations()) < 1.02 * products
    assert not list(unknown_loops(graph.get_operations()))
