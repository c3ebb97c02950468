"""The model that the doctor trains, in pipelines and in plain TensorFlow.

Shapes: B examples of T tokens in a mini-batch; D channels.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FeedForwardLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

_LEARNING_RATE = 1e-3
_NUM_HEADS = 4


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The sizes of a Transformer, and the settings of the pipeline that trains it.

    The loss is the mean of the squared outputs, and the optimizer is SGD.
    """

    num_layers: int
    model_dim: int  # D
    batch_size: int  # B
    sequence_length: int  # T
    num_micro_batches: int
    schedule: str = "gpipe"
    recompute: str = "always"
    offload: str | None = None
    stages_per_device: int = 1

    def batch(self) -> tf.Tensor:
        """Returns the inputs, `[B, T, D]`."""
        shape = self.batch_size, self.sequence_length, self.model_dim
        values = np.random.RandomState(self.num_layers).standard_normal(shape)
        return tf.constant(values, tf.float32)

    def pipeline(self, devices: Sequence[str]) -> PipeliningLayer:
        """Returns the pipeline, with initial weights that do not depend on devices."""
        dim = self.model_dim
        attention = MultiHeadAttentionLayer.Params().Set(
            dim=dim, num_heads=_NUM_HEADS, dim_per_head=dim // _NUM_HEADS
        )
        feed_forward = FeedForwardLayer.Params().Set(dim=dim, hidden_dim=4 * dim)
        sub = [
            ResidualLayer.Params().Set(dim=dim, body=body)
            for body in (attention, feed_forward)
        ]
        num_stages = len(devices) * self.stages_per_device
        p = PipeliningLayer.Params().Set(
            name="pipeline",
            cell_tpl=[SequentialLayer.Params().Set(sub=sub)] * self.num_layers,
            splits=[self.num_layers * (k + 1) // num_stages for k in range(num_stages)],
            num_micro_batches=self.num_micro_batches,
            schedule=self.schedule,
            stages_per_device=self.stages_per_device,
            devices=devices,
            recompute=self.recompute,
            offload=self.offload,
        )
        return p.Instantiate()


def pipelined_step(layer: PipeliningLayer, batch: tf.Tensor) -> Callable[[], tf.Tensor]:
    """Returns a function that makes a training step on `batch` and returns the loss."""
    variables = tf.nest.flatten([cell.vars for cell in layer.cells])

    @tf.function(autograph=False)
    def step(batch: tf.Tensor) -> tf.Tensor:
        with ForwardContext(step=tf.constant(0, tf.int64)):
            result = layer.ComputeGradients(
                layer.vars, [batch], tf.ones(batch.shape[:1]), _loss
            )
        gradients = tf.nest.flatten(list(result.gradients.cells))
        for variable, gradient in zip(variables, gradients, strict=True):
            with tf.device(variable.device):
                variable.assign_sub(_LEARNING_RATE * gradient)
        return result.metrics.loss[0]

    step.get_concrete_function(batch)
    return lambda: step(batch)


def plain_step(configuration: Configuration, device: str) -> Callable[[], tf.Tensor]:
    """Returns a function that makes a training step without a pipeline."""
    layers, batch = configuration.pipeline([device]).cells, configuration.batch()
    number = configuration.num_micro_batches
    step = accumulating_step(layers, _loss, number, _LEARNING_RATE)

    def run() -> tf.Tensor:
        with tf.device(device):
            return step(batch)

    return run


def accumulating_step(
    layers: Sequence[Any],
    loss_fn: Callable[[tf.Tensor, tf.Tensor], NestedMap],
    num_micro_batches: int,
    learning_rate: float,
    recomputes: bool = False,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a tf.function that trains layers on a batch and returns the mean loss.

    The function accumulates the gradients of the micro-batches in a loop. `loss_fn`
    takes the outputs and the examples' weights. If `recomputes`, each layer is run
    again in the backward pass.
    """
    variables = tf.nest.flatten([layer.vars for layer in layers])

    def loss_and_gradients(x: tf.Tensor, thetas: list[NestedMap]) -> list[tf.Tensor]:
        weights = tf.nest.flatten(thetas)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            for layer, theta in zip(layers, thetas, strict=True):
                run = tf.recompute_grad(layer.FProp) if recomputes else layer.FProp
                x = run(theta, x)
            loss, _ = loss_fn(x, tf.ones(x.shape[:1])).loss
        return [loss, *tape.gradient(loss, weights)]

    @tf.function(autograph=False)
    def step(batch: tf.Tensor) -> tf.Tensor:
        micro_batches = tf.reshape(batch, [num_micro_batches, -1, *batch.shape[1:]])
        thetas = [layer.theta for layer in layers]  # Cast once.

        def add(i: tf.Tensor, *totals: tf.Tensor) -> list[Any]:
            addends = loss_and_gradients(micro_batches[i], thetas)
            sums = zip(totals, addends, strict=True)
            return [i + 1, *(total + tf.cast(x, total.dtype) for total, x in sums)]

        zeros = [tf.zeros([]), *map(tf.zeros_like, variables)]
        _, loss, *gradients = tf.while_loop(
            lambda i, *_: i < num_micro_batches,
            add,
            [0, *zeros],
            parallel_iterations=1,
        )
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(learning_rate / num_micro_batches * gradient)
        return loss / num_micro_batches

    return step


def _loss(outputs: tf.Tensor, weights: tf.Tensor) -> NestedMap:
    mean = tf.reduce_mean(tf.square(outputs))
    return NestedMap(loss=(mean, tf.reduce_sum(weights)))
