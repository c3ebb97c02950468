"""The training steps of lingvo_pipe that are timed: plain SGD.

Shapes: B examples, N steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.consecutive_steps import ConsecutiveSteps
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tools.benchmarks.workload import LEARNING_RATE


def train_steps(
    layer: PipeliningLayer, batch: tf.Tensor, num_steps: int
) -> Callable[[], NestedMap]:
    """What makes N steps on one batch, updates the weights, and is traced.

    Returns:
        A function that returns NestedMap(loss: of the last step, times).
    """
    if num_steps == 1:
        step = tf.function(_one_step, autograph=False)
        one = step.get_concrete_function(layer, batch)
        return lambda: one(batch)
    steps = ConsecutiveSteps(layer, lambda x: _fed(x), _loss, _update)
    batches, tables = tf.stack([batch] * num_steps), steps.tables(num_steps)

    def run(batches: tf.Tensor) -> NestedMap:
        first = tf.constant(0, tf.int64)
        result = steps.run(_values(layer), batches, first, tables)
        return NestedMap(loss=result.metrics.loss[0][-1], times=result.times)

    many = tf.function(run, autograph=False).get_concrete_function(batches)
    return lambda: many(batches)


def peak_bytes(layer: PipeliningLayer, batch: tf.Tensor) -> list[int]:
    """See `PipeliningLayer.PeakBytes`."""
    return layer.PeakBytes(*_fed(batch), _loss)


def bytes_by_shapes(layer: PipeliningLayer, batch: tf.Tensor) -> int:
    """What a step sends, see `PipeliningLayer.BoundaryBytes`, and the batch's bytes."""
    between = layer.BoundaryBytes(*_fed(batch), _loss)
    inputs, weights = _fed(batch)
    given = sum(x.shape.num_elements() * x.dtype.size for x in (*inputs, weights))
    return sum(between.values()) + given


def _one_step(layer: PipeliningLayer, batch: tf.Tensor) -> NestedMap:
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(_values(layer), *_fed(batch), _loss)
    _descend([layer], [result.gradients])
    return NestedMap(loss=result.metrics.loss[0], times=result.times)


def _update(
    cells: Sequence[BaseLayer], gradients: Sequence[Any], *unused: Any
) -> list[tf.Tensor]:
    _descend(cells, gradients)
    return []


def _descend(layers: Sequence[BaseLayer], gradients: Sequence[Any]) -> None:
    variables = [layer.vars for layer in layers]
    for variable, gradient in zip(
        tf.nest.flatten(variables), tf.nest.flatten(gradients), strict=True
    ):
        with tf.device(variable.device):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=tf.constant(LEARNING_RATE), delta=gradient
            )


def _values(layer: PipeliningLayer) -> NestedMap:
    return tf.nest.map_structure(_read, layer.vars)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.value()


def _fed(batch: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Inputs, and for each example its weight in the loss, `[B]`."""
    return [batch], tf.ones(batch.shape[:1])


def _loss(outputs: tf.Tensor, weights: tf.Tensor) -> NestedMap:
    mean = tf.reduce_mean(tf.square(outputs))
    return NestedMap(loss=(mean, tf.reduce_sum(weights)))
