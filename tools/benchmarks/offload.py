"""Measures what offload costs a step, by the time that a copy to the host takes.

    python -m tools.benchmarks.offload

CPU devices have no other memory than their host's. So each copy is delayed, as if it
took a part of a stage's forward pass. The prediction simulates the schedule with the
costs of a step without offload, and with these copies. Steps with and without offload
run in turns, and their times are compared within a turn.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import app

import lingvo_pipe as lp
from lingvo_pipe.core.tables import markdown_table
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops import host_copies
from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.simulation.costs import Costs, fitted_costs, median_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.training.profiling.step_profile import measured_timeline

_NUMS_STAGES = (1, 2)
_PARTS = (0.25, 0.5, 0.75, 1.5)  # Of a forward pass that a copy takes.
_NUM_CELLS, _DIM, _ROWS, _NUM_MICRO_BATCHES = 8, 1024, 256, 8
_NUM_TURNS, _NUM_STEPS = 5, 5
_HEADER = ("stages", "copy / forward", "predicted", "measured", "range")


class Step(NamedTuple):
    """A training step, built once."""

    layer: Any
    run: Any

    def costs(self) -> Costs:
        """Returns the medians of the costs of some steps."""
        times = [[x.numpy() for x in self.run()] for _ in range(_NUM_STEPS)]
        timelines = [measured_timeline(self.layer.schedule, x) for x in times]
        return median_costs(list(map(fitted_costs, timelines)))

    def seconds(self) -> float:
        """Returns the median of the times of some steps."""
        seconds = []
        for _ in range(_NUM_STEPS):
            start = time.perf_counter()
            self.run()[0].numpy()
            seconds.append(time.perf_counter() - start)
        return median(seconds)


class SlowChannel(Channel):
    """A channel between a device and its host, whose messages take some seconds."""

    def __init__(self, seconds: float, name: str, *args: Any, **options: Any):
        super().__init__(name, *args, **options)
        is_copied = name.endswith(("/to_host", "/to_device"))
        self._seconds = seconds if is_copied else 0.0

    def receive(self) -> tf.Tensor:
        """Receives a message, and waits."""
        received = super().receive()
        if not self._seconds:
            return received
        with tf.control_dependencies([received]):
            waited = tf.numpy_function(self._wait, [], tf.float32)
        with tf.control_dependencies([waited]):
            return tf.identity(received)

    def _wait(self) -> np.float32:
        time.sleep(self._seconds)
        return np.float32(0)


def _step(devices: Sequence[str], copy_seconds: float = 0.0) -> Step:
    """Returns a step of GPipe that offloads everything if copies take any time."""
    dense = lp.layers.FCLayer.Params().Set(input_dim=_DIM, output_dim=_DIM)
    layer = (
        lp.PipeliningLayer.Params()
        .Set(name="pipe", cell_tpl=[dense] * _NUM_CELLS, splits=len(devices))
        .Set(devices=list(devices), num_micro_batches=_NUM_MICRO_BATCHES)
        .Set(schedule="gpipe", recompute="never")
        .Set(offload="always" if copy_seconds else None)
        .Instantiate()
    )
    rows = tf.ones([_ROWS * _NUM_MICRO_BATCHES, _DIM])

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        with ForwardContext(step=tf.constant(0, tf.int64)):
            result = layer.ComputeGradients(layer.theta, [rows], rows, _loss)
        return list(result.times)

    with mock.patch.object(
        host_copies, "Channel", functools.partial(SlowChannel, copy_seconds)
    ):
        run()
    return Step(layer, run)


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs * targets), 1.0))


def _rows(devices: Sequence[str]) -> Iterator[list[str]]:
    stash = _step(devices)
    costs = stash.costs()
    forward = max(stage.forward for stage in costs.stages)
    before = simulate(stash.layer.schedule, costs).step_seconds
    for part in _PARTS:
        copy = part * forward
        away = _step(devices, copy)
        stages = [dataclasses.replace(x, offload=copy, load=copy) for x in costs.stages]
        slow = dataclasses.replace(costs, stages=tuple(stages))
        predicted = simulate(away.layer.schedule, slow).step_seconds / before
        ratios = [away.seconds() / stash.seconds() for _ in range(_NUM_TURNS)]
        low_to_high = f"{min(ratios):.2f} to {max(ratios):.2f}"
        numbers = f"{part:g}", f"{predicted:.2f}", f"{median(ratios):.2f}"
        yield [str(len(devices)), *numbers, low_to_high]


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    del argv
    devices = lp.initialize_devices(max(_NUMS_STAGES))
    table = [row for number in _NUMS_STAGES for row in _rows(devices[:number])]
    print(*markdown_table([_HEADER, *table]), sep="\n")


if __name__ == "__main__":
    app.run(main)
