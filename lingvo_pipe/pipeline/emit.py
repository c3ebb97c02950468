r"""From a schedule to one TensorFlow graph.

    device 0:  While over column 0  --Send/Recv--  device 1:  While over column 1  ...

Each device runs one loop over its own column of the schedule, an int table fed as data:
an iteration picks the operation's branch and runs it on the micro-batch that the table
names. Neighbours exchange activations and gradients over channels, so a device waits
for the messages it needs and for nothing else; the size of the graph depends neither on
the number of micro-batches nor on the order of the operations.

The loops stand side by side in one graph without automatic control dependencies, which
would run them one after another: for ever, as each waits for its neighbour. So whatever
must run within an iteration is tied to its results by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.channel import Channel
from lingvo_pipe.pipeline.device_loop import DeviceLoop
from lingvo_pipe.pipeline.schedule import Schedule
from lingvo_pipe.pipeline.stage import Stage
from lingvo_pipe.pipeline.stage_runner import StageRunner


class Emitter:
    """Emits the loops of one schedule over given stages and devices."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[Stage],
        devices: Sequence[str],
        micro_batch_size: int,
        channel_prefix: str,
    ):
        """Initialises the emitter.

        Args:
            schedule: checked.
            stages: one for each of the schedule's.
            devices: full names, one for each stage.
            micro_batch_size: number of examples in a micro-batch.
            channel_prefix: unlike that of any other pipeline in the same step.
        """
        self._devices = devices
        channels = [
            _channels(f"{channel_prefix}/{k}", devices[k], devices[k + 1], stage)
            for k, stage in enumerate(stages[:-1])
        ]
        self._runners = [
            StageRunner(
                stage,
                schedule.has_backward,
                schedule.num_micro_batches,
                micro_batch_size,
                before,
                after,
            )
            for stage, before, after in zip(
                stages, [None, *channels], [*channels, None], strict=True
            )
        ]
        self._loops = [
            DeviceLoop(devices[column[0].stage], column, dict(enumerate(self._runners)))
            for column in schedule.columns
        ]

    @property
    def tables(self) -> list[list[tuple[int, int]]]:
        """The schedule as data: for each device rows (branch, micro-batch)."""
        return [loop.table for loop in self._loops]

    def emit(self, arguments: NestedMap) -> NestedMap:
        """Emits the loops into the current graph, one without automatic dependencies.

        Args:
            arguments: NestedMap of tensors or None:
                columns: as `tables`, `[N, 2]` int32 each.
                thetas: for each stage its layers' weights.
                step: [] integer or None.
                first_example: [] int64, place of the mini-batch's first.
                inputs: positional inputs of the first stage, stacked by micro-batch.
                targets: of the loss, stacked by micro-batch.

        Returns:
            NestedMap:
                gradients: for each stage a list, of the trained weights, of the summed
                    loss; empty lists if the schedule has no backward.
                sums: for each stage the total of its sums.
                outputs: the last stage's outputs, stacked by micro-batch, if it has no
                    loss; else empty.
        """
        finals: dict[int, NestedMap] = {}
        for loop, column in zip(self._loops, arguments.columns, strict=True):
            finals.update(loop.emit(column, arguments))
        states = [finals[stage] for stage in range(len(self._runners))]
        with tf.device(self._devices[-1]):
            outputs = self._runners[-1].stacked_outputs(states[-1])
        return NestedMap(
            gradients=[state.gradients for state in states],
            sums=[state.sums for state in states],
            outputs=outputs,
        )


def _channels(
    name: str, device: str, next_device: str, stage: Stage
) -> tuple[Channel, Channel]:
    """The channels after a stage: activations forward, gradients back."""
    outputs = stage.outputs
    return (
        Channel(f"{name}/activation", device, next_device, outputs.specs),
        Channel(f"{name}/gradient", next_device, device, outputs.gradient_specs),
    )
