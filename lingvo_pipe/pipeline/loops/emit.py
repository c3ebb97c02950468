r"""From a schedule to one TensorFlow graph.

    device 0:  While over column 0  --Send/Recv--  device 1:  While over column 1  ...

Each device runs one loop over its own column of the schedule, an int table fed as data:
an iteration picks the operation's branch and runs it on the micro-batch that the table
names. Stages exchange activations and gradients over channels, so a device waits for
the messages it needs and for nothing else; the size of the graph depends neither on the
number of micro-batches nor on the order of the operations.

The loops stand side by side in one graph without automatic control dependencies, which
would run them one after another: for ever, as each waits for its neighbour. So whatever
must run within an iteration is tied to its results by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.dataflow import Dataflow, Hop
from lingvo_pipe.pipeline.loops.device_loop import DeviceLoop
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.loops.traffic import Traffic
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD
from lingvo_pipe.pipeline.schedules.table import Table


class Emitter:
    """Emits the loops of one schedule over given stages and devices."""

    def __init__(
        self,
        tables: Sequence[Table],
        stages: Sequence[Stage],
        devices: Sequence[str],
        specs: Mapping[int, tf.TensorSpec],
        outputs: Sequence[int],
        seeded: Sequence[int],
        input_gradients: Sequence[int],
        channel_prefix: str,
        updates: Sequence[StageUpdate] = (),
    ):
        """Initialises the emitter.

        Args:
            tables: of each device.
            stages: in order.
            devices: full names of where the loops run, one for each stage.
            specs: of all values, for one micro-batch.
            outputs: the values that the last stage keeps.
            seeded: the values whose gradients it is given.
            input_gradients: the mini-batch's inputs whose gradients are wanted.
            channel_prefix: unlike that of any other pipeline in the same step.
            updates: of each stage, for a schedule that has them.
        """
        flow = Dataflow(
            [[call.call for call in stage.calls] for stage in stages], outputs, seeded
        )
        self._devices = devices
        self._updates = updates
        forward = _channels(flow.forward, f"{channel_prefix}/value", devices, specs)
        back = _channels(flow.backward, f"{channel_prefix}/gradient", devices, specs)
        self._channels = [*forward.values(), *back.values()]
        last = len(stages) - 1
        self._leaves = self._leave_channels(tables, channel_prefix)
        self._runners = [
            StageRunner(
                stage,
                Traffic(
                    inputs=flow.inputs(k),
                    receives=_ending(forward, k),
                    sends=_beginning(forward, k),
                    gradient_receives=_ending(back, k),
                    gradient_sends=_beginning(back, k),
                    outputs=outputs if k == last else [],
                    seeded=seeded if k == last else [],
                    input_gradients=flow.input_gradients(k, input_gradients),
                    leave=self._leaves.get(k),
                    gives_leave=self._leaves.get(k - 1),
                ),
                specs,
                devices[k],
                updates[k] if updates else None,
            )
            for k, stage in enumerate(stages)
        ]
        self._loops = [
            DeviceLoop(
                devices[table.branches[0].stage],
                table.branches,
                table.stashes,
                dict(enumerate(self._runners)),
            )
            for table in tables
        ]

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """What a micro-batch sends, by the devices that send and receive."""
        found: Counter[tuple[str, str]] = Counter()
        for channel in self._channels:
            found[channel.ends] += channel.num_bytes
        return dict(found)

    def emit(
        self, arguments: NestedMap, after: Sequence[tf.Tensor] | None = None
    ) -> NestedMap:
        """Emits the loops into the current graph, one without automatic dependencies.

        Args:
            after: for each device what must be there before its loop begins, such as
                the `times` of loops emitted before.
            arguments: NestedMap of tensors or None:
                tables: for each device NestedMap(rows, num_slots), see `DeviceLoop`.
                weights: for each stage, for each of its calls, a list.
                step: [] integer or None; with updates `[M]`.
                first_examples: `[M]` int64, place in the mini-batch of each
                    micro-batch's first example.
                num_examples: `[M]` int32, how many of its rows are examples; or None.
                loss_scale: [] or None; with updates `[M]` or None.
                divisors, micro_batches_per_step: with updates: by what each step's
                    totals of gradients are divided, `[N]` float64; M / N, [] int32.
                batch: the mini-batch's inputs and targets by number of the value,
                    stacked by micro-batch.
                output_gradients: of the values that are seeded, stacked.

        Returns:
            NestedMap:
                gradients: for each stage, for each call, packed totals; empty lists if
                    the schedule has no backward.
                sums: for each stage, for each call, totals of its sums; with updates
                    stacked by step.
                notes: with updates: for each stage, what was noted, stacked by step.
                outputs: the values that are kept, stacked by micro-batch.
                input_gradients: dict by value, stacked by micro-batch.
                times: for each device `[N, 3]` float64 seconds: when each operation
                    began to wait, started and ended.
        """
        states: dict[int, NestedMap] = {}
        times = []
        for i, (loop, table) in enumerate(
            zip(self._loops, arguments.tables, strict=True)
        ):
            before = [
                *self._first_leave(loop.stages),
                *(after[i : i + 1] if after else []),
            ]
            final = loop.emit(arguments, table, arguments.weights, before)
            states.update(final.states)
            rest = self._leave_not_taken(final, loop.stages)
            with tf.control_dependencies(before):
                rest += self._relays(loop.stages, arguments.first_examples)
            device = self._devices[loop.stages[0]]
            with tf.device(device), tf.control_dependencies(rest):
                times.append(tf.identity(final.times))
        found = NestedMap(
            gradients=[], sums=[], notes=[], input_gradients={}, times=times
        )
        for k, runner in enumerate(self._runners):
            with tf.device(self._devices[k]):
                self._add_totals(found, runner, states[k])
                found.input_gradients.update(runner.stacked_input_gradients(states[k]))
        with tf.device(self._devices[-1]):
            found.outputs = self._runners[-1].stacked_outputs(states[len(states) - 1])
        return found

    def _relays(
        self, stages: Sequence[int], of_micro_batches: tf.Tensor
    ) -> list[tf.Tensor]:
        """Emits the loops that relay messages from other processes to these stages.

        Each value, and each gradient, comes once for each micro-batch.
        """
        device = self._devices[stages[0]]
        with tf.device(device):
            number = tf.shape(of_micro_batches)[0]
            return [
                channel.relay(number)
                for channel in self._channels
                if channel.is_relayed and channel.ends[1] == device
            ]

    def _add_totals(
        self, found: NestedMap, runner: StageRunner, state: NestedMap
    ) -> None:
        if self._updates:
            noted = runner.noted(state)
            found.sums.append(noted.sums)
            found.notes.append(noted.notes)
        else:
            found.gradients.append(runner.packed_gradients(state))
            found.sums.append(runner.final_sums(state))

    def _leave_channels(
        self, tables: Sequence[Table], prefix: str
    ) -> dict[int, Channel]:
        """For each stage that begins no step without the next one's leave."""
        branches = [branch for table in tables for branch in table.branches]
        return {
            k: Channel(
                f"{prefix}/leave/{k}",
                self._devices[k + 1],
                self._devices[k],
                tf.TensorSpec([], tf.bool),
                is_urgent=False,
            )
            for k in sorted({b.stage for b in branches if b.waits_for_next})
        }

    def _first_leave(self, stages: Sequence[int]) -> list[tf.Operation]:
        """Gives leave to begin the first steps, that which is made and those ahead."""
        with tf.device(self._devices[stages[0]]):
            return [
                self._leaves[k - 1].send(tf.constant(True))
                for k in stages
                if k - 1 in self._leaves
                for _ in range(MAX_STEPS_AHEAD + 1)
            ]

    def _leave_not_taken(
        self, final: NestedMap, stages: Sequence[int]
    ) -> list[tf.Tensor]:
        """Receives what no step is left for, so that no message stays behind."""
        device = self._devices[stages[0]]
        with tf.device(device), tf.control_dependencies([final.times]):
            return [
                self._leaves[k].receive()
                for k in stages
                if k in self._leaves
                for _ in range(MAX_STEPS_AHEAD + 1)
            ]


def _channels(
    hops: Sequence[Hop],
    prefix: str,
    devices: Sequence[str],
    specs: Mapping[int, tf.TensorSpec],
) -> dict[Hop, Channel]:
    return {
        hop: Channel(
            f"{prefix}/{hop.value}/{hop.source}/{hop.target}",
            devices[hop.source],
            devices[hop.target],
            specs[hop.value],
        )
        for hop in hops
    }


def _ending(channels: Mapping[Hop, Channel], stage: int) -> dict[int, Channel]:
    return {hop.value: c for hop, c in channels.items() if hop.target == stage}


def _beginning(channels: Mapping[Hop, Channel], stage: int) -> dict[int, Channel]:
    return {hop.value: c for hop, c in channels.items() if hop.source == stage}
