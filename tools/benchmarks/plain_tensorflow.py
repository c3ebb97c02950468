"""The benchmark's model as a plain tf.function, which trains it on one device.

The layers are from lingvo_pipe. All else is plain TensorFlow with its graph optimizer.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tools.doctor.model import accumulating_step
from tools.benchmarks import lingvo_pipe_model as model
from tools.benchmarks.configuration import LEARNING_RATE, Configuration


def plain_step(configuration: Configuration, device: str) -> Callable[[], NestedMap]:
    """Returns a function that makes a training step. Its first call traces the step."""
    of_layers = dataclasses.replace(configuration, schedule="gpipe")
    step = accumulating_step(
        model.make_pipeline(of_layers, [device]).cells,
        model.mean_loss,
        configuration.num_micro_batches,
        LEARNING_RATE,
        recomputes=configuration.recompute == "always",
    )
    batch = tf.constant(configuration.workload.batch())

    def run() -> NestedMap:
        with tf.device(device):
            return NestedMap(loss=step(batch), times=[])

    return run
