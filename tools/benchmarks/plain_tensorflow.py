"""The benchmark's model as a plain tf.function, which trains it on one device.

The layers are lingvo_pipe's. All else is TensorFlow's, with its graph optimizer.

Shapes: B examples of T tokens in a mini-batch; D channels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from tools.benchmarks import lingvo_pipe_model as model
from tools.benchmarks.configuration import LEARNING_RATE, Configuration


def plain_step(configuration: Configuration, device: str) -> Callable[[], NestedMap]:
    """Returns a step that accumulates the gradients of M micro-batches, in a loop.

    Its first call traces it.
    """
    of_layers = dataclasses.replace(configuration, schedule="gpipe")
    layers = model.make_pipeline(of_layers, [device]).cells
    variables = tf.nest.flatten([layer.vars for layer in layers])
    number = configuration.num_micro_batches
    batch = tf.constant(configuration.workload.batch())

    def loss_and_gradients(x: tf.Tensor, thetas: list[NestedMap]) -> list[tf.Tensor]:
        weights = tf.nest.flatten(thetas)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            for layer, theta in zip(layers, thetas, strict=True):
                run = layer.FProp
                if configuration.recompute == "always":
                    run = tf.recompute_grad(run)
                x = run(theta, x)
            loss, _ = model.mean_loss(x, tf.ones(x.shape[:1])).loss
        return [loss, *tape.gradient(loss, weights)]

    @tf.function(autograph=False)
    def step(batch: tf.Tensor) -> tf.Tensor:
        micro_batches = tf.reshape(batch, [number, -1, *batch.shape[1:]])
        thetas = [layer.theta for layer in layers]  # Cast once.

        def add(i: tf.Tensor, *totals: tf.Tensor) -> list[Any]:
            addends = loss_and_gradients(micro_batches[i], thetas)
            sums = zip(totals, addends, strict=True)
            return [i + 1, *(total + tf.cast(x, total.dtype) for total, x in sums)]

        zeros = [tf.zeros([]), *map(tf.zeros_like, variables)]
        _, loss, *gradients = tf.while_loop(
            lambda i, *_: i < number, add, [0, *zeros], parallel_iterations=1
        )
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(LEARNING_RATE / number * gradient)
        return loss / number

    def run() -> NestedMap:
        with tf.device(device):
            return NestedMap(loss=step(batch), times=[])

    return run
