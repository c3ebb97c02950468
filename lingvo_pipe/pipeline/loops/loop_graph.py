r"""Emits a schedule as one TensorFlow graph.

    device 0:  While over column 0  --Send/Recv--  device 1:  While over column 1  ...

Each device runs one loop over its own column of the schedule. The column is an int
table, which is an argument. An iteration picks the operation's branch and runs it on
the micro-batch in the table. Stages exchange activations and gradients over channels,
so a device waits only for the messages that it needs. The size of the graph depends
neither on the number of micro-batches nor on the order of the operations.

Where a stage offloads, two more loops of its device copy residuals to the host and back
(`host_copies.py`).

The graph has no automatic control dependencies. They would run one loop after another,
and the loops would hang, because each waits for its neighbor. So operations that must
run in an iteration are tied to the iteration's results by hand.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.dataflow import Dataflow, Hop
from lingvo_pipe.pipeline.loops.device_loop import DeviceLoop
from lingvo_pipe.pipeline.loops.host_copies import HostCopies
from lingvo_pipe.pipeline.loops.loop_state import StagePorts
from lingvo_pipe.pipeline.loops.offloaded_part import OffloadedPart
from lingvo_pipe.pipeline.loops.run_data import LoopArguments, LoopResults
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.stage_update import StageUpdate
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD, Kind
from lingvo_pipe.pipeline.schedules.table import Table


class LoopGraph:
    """The loops of one schedule, for given stages and devices."""

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
        """Initializes the graph, with one of `tables` for each device.

        `devices` are full names, by stage. `specs` describe all values of a
        micro-batch. The last stage returns the values `outputs`. The gradients of the
        values `seeded` are arguments of a run. Gradients of the mini-batch's inputs
        `input_gradients` are results. No other pipeline of a step has `channel_prefix`.
        `updates` has an item for each stage, or none if the schedule has no updates.
        """
        flow = Dataflow(
            [[layer.values for layer in stage.layers] for stage in stages],
            outputs,
            seeded,
        )
        self._devices = devices
        forward = self._hop_channels(flow.forward, f"{channel_prefix}/value", specs)
        back = self._hop_channels(flow.backward, f"{channel_prefix}/gradient", specs)
        self._channels = [*forward.values(), *back.values()]
        last = len(stages) - 1
        branches = [branch for table in tables for branch in table.branches]
        self._credits = {
            k: Channel(
                f"{channel_prefix}/credit/{k}",
                devices[k + 1],
                devices[k],
                tf.TensorSpec([], tf.bool),
                is_urgent=False,
            )
            for k in sorted({b.stage for b in branches if b.waits_for_next})
        }
        self._copies = {
            k: HostCopies(f"{channel_prefix}/copies/{k}", devices[k])
            for k in sorted({b.stage for b in branches if b.kind is Kind.OFFLOAD})
            if OffloadedPart(stages[k], flow.inputs(k)).packing.spec
        }
        self._runners = [
            StageRunner(
                stage,
                StagePorts(
                    inputs=flow.inputs(k),
                    receives={h.value: c for h, c in forward.items() if h.target == k},
                    sends={h.value: c for h, c in forward.items() if h.source == k},
                    gradient_receives={
                        h.value: c for h, c in back.items() if h.target == k
                    },
                    gradient_sends={
                        h.value: c for h, c in back.items() if h.source == k
                    },
                    outputs=outputs if k == last else [],
                    seeded=seeded if k == last else [],
                    input_gradients=flow.input_gradients(k, input_gradients),
                    credit_in=self._credits.get(k),
                    credit_out=self._credits.get(k - 1),
                    copies=self._copies.get(k),
                ),
                specs,
                devices[k],
                updates[k] if updates else None,
            )
            for k, stage in enumerate(stages)
        ]
        self._loops = [
            DeviceLoop(devices[table.branches[0].stage], table, self._runners)
            for table in tables
        ]

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """Returns the bytes sent per micro-batch, by (source, target) device."""
        num_bytes: Counter[tuple[str, str]] = Counter()
        for channel in self._channels:
            num_bytes[channel.devices] += channel.num_bytes
        return dict(num_bytes)

    def emit(
        self, arguments: LoopArguments, after: Sequence[tf.Tensor] = ()
    ) -> LoopResults:
        """Adds the loops to the current graph, without automatic control dependencies.

        If `after` is not empty, loop i waits for `after[i]`, such as the `times` of an
        earlier loop.
        """
        states, times = {}, []
        for i, (loop, table) in enumerate(
            zip(self._loops, arguments.tables, strict=True)
        ):
            with tf.device(loop.device):
                channels = self._credits_of(k - 1 for k in loop.stages)
                before = [channel.send(tf.constant(True)) for channel in channels]
                before += after[i : i + 1]
                of_stages, loop_times = loop.emit(arguments, table, before)
                states.update(of_stages)
                with tf.control_dependencies([loop_times]):
                    # Receives the last credits, so that no message remains.
                    must_finish = [c.receive() for c in self._credits_of(loop.stages)]
                with tf.control_dependencies(before):
                    must_finish += self._relays(
                        loop.device, arguments.run.first_examples
                    )
                    for k in filter(self._copies.__contains__, loop.stages):
                        number = loop.count(table, k, Kind.OFFLOAD)
                        must_finish += self._copies[k].emit(number)
                with tf.control_dependencies(must_finish):
                    times.append(tf.identity(loop_times))
        results = []
        for k, runner in enumerate(self._runners):
            with tf.device(self._devices[k]):
                results.append(runner.results(states[k]))
        return LoopResults(results, times)

    def _relays(self, device: str, first_examples: tf.Tensor) -> list[tf.Tensor]:
        number = tf.shape(first_examples)[0]
        return [
            channel.relay(number)
            for channel in self._channels
            if channel.is_relayed and channel.devices[1] == device
        ]

    def _hop_channels(
        self, hops: Sequence[Hop], prefix: str, specs: Mapping[int, tf.TensorSpec]
    ) -> dict[Hop, Channel]:
        return {
            hop: Channel(
                f"{prefix}/{hop.value}/{hop.source}/{hop.target}",
                self._devices[hop.source],
                self._devices[hop.target],
                specs[hop.value],
            )
            for hop in hops
        }

    def _credits_of(self, stages: Iterable[int]) -> list[Channel]:
        """Returns the credit channels to these stages, each MAX_STEPS_AHEAD + 1 times.

        A credit from the next stage allows a stage to begin another step. Each channel
        holds that many credits before the first step and after the last one.
        """
        channels = [self._credits[k] for k in stages if k in self._credits]
        return [channel for channel in channels for _ in range(MAX_STEPS_AHEAD + 1)]
