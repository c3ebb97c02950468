"""The benchmark's model in lingvo_pipe: layers, and training steps with plain SGD.

Shapes: b examples of T tokens in a micro-batch, B in a mini-batch; D channels; H heads.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.shared_updates import by_device
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.pipeline_steps import PipelineSteps
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tools.benchmarks.configuration import (
    LEARNING_RATE,
    NORM_EPSILON,
    Configuration,
    Workload,
)


class TransformerLayer(BaseLayer):
    """A layer of attention and feed-forward, each with a norm before and a residual."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("workload", None, "The model that the layer is part of.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._workload: Workload = self.params.workload
        for name, shape in self._workload.weight_shapes().items():
            # The benchmark assigns the values.
            self.CreateVariable(name, WeightParams(shape, WeightInit.Constant(0.0)))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        """Applies the layer to `[b, T, D]`, and returns the same shape."""
        x = tf.cast(x, self.fprop_dtype)
        x += self._attention(theta, _norm(x, theta.attention_norm))
        hidden = _project(_norm(x, theta.feed_forward_norm), theta.expand)
        return x + _project(tf.nn.relu(hidden), theta.contract)

    def _attention(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        num_examples, length, dim = x.shape
        num_heads = self._workload.num_heads
        heads = tf.reshape(
            _project(x, theta.query_key_value),
            [num_examples, length, 3, num_heads, dim // num_heads],
        )
        query, key, value = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))
        logits = tf.matmul(query, key, transpose_b=True) * (dim // num_heads) ** -0.5
        attended = tf.matmul(tf.nn.softmax(logits), value)  # [b, H, T, D / H]
        joined = tf.reshape(tf.transpose(attended, [0, 2, 1, 3]), x.shape)
        return _project(joined, theta.attention_output)


def _norm(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    centered = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    normal = centered * tf.math.rsqrt(variance + NORM_EPSILON)
    return tf.cast(normal * tf.cast(factor, tf.float32), x.dtype)


def _project(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Multiplies `[b, T, I]` with `[I, O]`, as one product for all examples."""
    num_examples, length, _ = x.shape
    flat = tf.reshape(x, [num_examples * length, x.shape[-1]])
    return tf.reshape(tf.matmul(flat, weight), [num_examples, length, weight.shape[-1]])


def make_pipeline(
    configuration: Configuration, devices: Sequence[str]
) -> PipeliningLayer:
    """Returns the pipeline of a configuration with its initial weights.

    After each block of layers but the last comes the block's loss, in the same stage.
    """
    workload, recompute = configuration.workload, configuration.recompute
    dim, num_layers = workload.model_dim, workload.num_layers
    layer = TransformerLayer.Params().Set(workload=workload)
    head = FCLayer.Params().Set(input_dim=dim, output_dim=dim)
    loss = LocalLossLayer.Params().Set(head=head)
    num_blocks, num_stages = configuration.num_blocks, configuration.num_stages
    blocks = [num_layers * k // num_blocks for k in range(1, num_blocks)]
    ends = [num_layers * k // num_stages for k in range(1, num_stages + 1)]
    p = PipeliningLayer.Params().Set(
        name="pipeline",
        cell_tpl=[
            cell
            for i in range(num_layers)
            for cell in ([loss, layer] if i in blocks else [layer])
        ],
        splits=[end + sum(block <= end for block in blocks) for end in ends],
        num_micro_batches=configuration.num_micro_batches,
        schedule=configuration.schedule,
        stages_per_device=configuration.stages_per_device,
        devices=devices,
        recompute=recompute if isinstance(recompute, str) else list(recompute),
        fprop_dtype=tf.as_dtype(configuration.dtype),
    )
    pipeline = p.Instantiate()
    _assign_weights(pipeline.cells)
    return pipeline


def _assign_weights(cells: Sequence[BaseLayer]) -> None:
    layers = (cell for cell in cells if isinstance(cell, TransformerLayer))
    for i, layer in enumerate(layers):
        for name, value in layer.params.workload.weights(i).items():
            layer.vars[name].assign(value)


def train_steps(
    layer: PipeliningLayer, batch: tf.Tensor, num_steps: int
) -> Callable[[], NestedMap]:
    """Traces steps on a batch `[B, T, D]`, and returns a function that runs them.

    The function returns the last loss and the times.
    """
    if num_steps == 1:
        step = tf.function(_one_step, autograph=False)
        one = step.get_concrete_function(layer, batch)
        return lambda: one(batch)
    steps = PipelineSteps(layer, inputs_of, mean_loss, _descend)
    batches, tables = tf.stack([batch] * num_steps), steps.tables(num_steps)

    def run(batches: tf.Tensor) -> NestedMap:
        first = tf.constant(0, tf.int64)
        result = steps.run(layer.vars, batches, first, tables)
        return NestedMap(loss=result.metrics.loss[0][-1], times=result.times)

    many = tf.function(run, autograph=False).get_concrete_function(batches)
    return lambda: many(batches)


def bytes_by_shapes(layer: PipeliningLayer, batch: tf.Tensor) -> int:
    """Returns the bytes of activations, gradients and batch that a step sends."""
    inputs, weights = inputs_of(batch)
    between = layer.BoundaryBytes(inputs, weights, mean_loss)
    return sum(between.values()) + num_bytes([*inputs, weights])


def _one_step(layer: PipeliningLayer, batch: tf.Tensor) -> NestedMap:
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(layer.vars, *inputs_of(batch), mean_loss)
    _descend(layer.cells, result.gradients.cells)
    return NestedMap(loss=result.metrics.loss[0], times=result.times)


def _descend(
    layers: Sequence[BaseLayer], gradients: Sequence[Any], *unused: Any
) -> list[tf.Tensor]:
    """Takes a step of SGD. Returns [], since there are no metrics."""
    variables = tf.nest.flatten([layer.vars for layer in layers])
    flat = tf.nest.flatten(list(gradients))
    for device, indices in by_device(variables).items():
        with tf.device(device):
            _descend_device(
                [variables[i].handle for i in indices], [flat[i] for i in indices]
            )
    return []


@functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)
def _descend_device(handles: list[tf.Tensor], gradients: list[tf.Tensor]) -> None:
    """Updates a device's variables. Each call is one node of the graph."""
    rate = tf.constant(LEARNING_RATE)
    for handle, gradient in zip(handles, gradients, strict=True):
        tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=rate, delta=gradient)


def inputs_of(batch: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the inputs, and each example's weight in the loss, `[B]`."""
    return [batch], tf.ones(batch.shape[:1])


def mean_loss(outputs: tf.Tensor, weights: tf.Tensor) -> NestedMap:
    """Returns the mean of the squared outputs."""
    mean = tf.reduce_mean(tf.square(tf.cast(outputs, tf.float32)))
    return NestedMap(loss=(mean, tf.reduce_sum(weights)))
