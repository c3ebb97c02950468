"""Gradients of one's own in graphs are tf.custom_gradient's, and the graphs end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.graph_gradient import custom_gradient
from lingvo_pipe.layers.convolution import PoolingLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

X = np.array([1, 2, 3], np.float32)
Y = np.array([4, 5, 6], np.float32)


def _halved(x: tf.Tensor, y: tf.Tensor) -> Any:
    """Returns a product and a square, with half of their gradients."""

    def gradient(of_product: tf.Tensor, of_square: tf.Tensor) -> list[Any]:
        return [(of_product * y + 2 * of_square * x) / 2, of_product * x / 2]

    return [x * y, x * x], gradient


def _by_tape(x: tf.Tensor, y: tf.Tensor, call: Callable[..., Any]) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        product, square = call(x, tf.sin(y))
        loss = tf.reduce_sum(product * square)
    return tape.gradient(loss, [x, y])


def _by_graph(x: tf.Tensor, y: tf.Tensor, call: Callable[..., Any]) -> list[Any]:
    product, square = call(x, tf.sin(y))
    return tf.gradients(tf.reduce_sum(product * square), [x, y])


def _through_a_function(
    x: tf.Tensor, y: tf.Tensor, call: Callable[..., Any]
) -> list[Any]:
    return _by_tape(x, y, tf.function(call, autograph=False))


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("gradients", [_by_tape, _by_graph, _through_a_function])
def test_the_gradient_is_custom_gradients(
    gradients: Callable[..., Any], in_graph: bool
) -> None:
    if gradients is _by_graph and not in_graph:
        return  # Eagerly there is no tf.gradients.

    def gradients_with(wrap: Callable[..., Any]) -> list[np.ndarray]:
        def run(x: tf.Tensor, y: tf.Tensor) -> list[Any]:
            return gradients(x, y, lambda *args: wrap(_halved)(*args))

        function = tf.function(run, autograph=False) if in_graph else run
        return [x.numpy() for x in function(tf.constant(X), tf.constant(Y))]

    expected = gradients_with(tf.custom_gradient)
    np.testing.assert_array_equal(gradients_with(custom_gradient), expected)


def test_a_call_in_an_inner_graph_has_its_own_gradient() -> None:
    """Names of operations in both are equal."""
    thrice = custom_gradient(lambda x: ([x], lambda upstream: [3 * upstream]))
    twice = custom_gradient(lambda x: ([x], lambda upstream: [2 * upstream]))

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        (once,) = thrice(x)
        inner = tf.function(lambda y: twice(y)[0], autograph=False)
        return tf.gradients(inner(once), x)[0]

    assert outer(tf.constant(1.0)) == 6


def _loss(outputs: Any, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs - targets), tf.constant(1.0)))


def _trained(pipeline: Any, x: tf.Tensor) -> Any:
    targets = tf.zeros([4, 3, 3, 2])
    return pipeline.ComputeGradients(pipeline.theta, [x], targets, _loss)


def _under_a_tape(pipeline: Any, x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = pipeline.FProp(pipeline.theta, x)
    return tape.gradient(outputs, x)


@pytest.mark.parametrize("run", [_trained, _under_a_tape])
def test_the_graphs_of_a_dropped_step_end(run: Callable[..., Any]) -> None:
    """Once the process kept each step's graphs, some hundred MB for a large model."""
    pool = PoolingLayer.Params().Set(window_shape=[2, 2])
    cells = [pool, FCLayer.Params().Set(input_dim=3, output_dim=2)]
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, splits=2)

    def build() -> weakref.ref[tf.Graph]:
        pipeline = p.Instantiate()
        function = tf.function(lambda x: run(pipeline, x), autograph=False)
        traced = function.get_concrete_function(tf.zeros([4, 3, 3, 3]))
        return weakref.ref(traced.graph)

    graph = build()
    gc.collect()
    assert graph() is None
