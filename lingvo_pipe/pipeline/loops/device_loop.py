"""One device's loop over its column of the schedule.

The column is data: each row is an operation, with its branch, micro-batch and the slots
that it reads and writes. The branches are structure: the kinds of operation that the
device runs on its stages. For each operation the loop records when it began to wait
for its messages, when it had received them, and when it finished.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.operation import Operation, StageState
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.while_loop import timestamp, while_loop
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.schedules.table import Branch

_NUM_TIMES = 3


class DeviceLoop:
    """The loop of one column: the operations of the stages of one device.

    Attributes:
        stages: the stages.
    """

    def __init__(
        self,
        device: str,
        branches: Sequence[Branch],
        stashes: Sequence[tuple[int, StashKind]],
        runners: Mapping[int, StageRunner],
    ):
        """Initialises the loop.

        Args:
            device: full device name.
            branches: the possible operations; see `Table`.
            stashes: the (stage, stash) pairs that the branches use.
            runners: by stage, at least for all stages of the device.
        """
        self._device = device
        self._branches = list(branches)
        self._stashes = list(stashes)
        self.stages = sorted({branch.stage for branch in branches})
        self._runners = [runners[stage] for stage in self.stages]
        self._trains = any(branch.kind is Kind.BACKWARD for branch in branches)

    def emit(
        self,
        arguments: NestedMap,
        table: NestedMap,
        weights: Any,
        after: Sequence[tf.Operation | tf.Tensor] = (),
    ) -> NestedMap:
        """Emits the loop into the current graph.

        Args:
            arguments: see `Emitter.emit`.
            table: NestedMap(rows=`[N, 4]` int32, num_slots=int32, one for each of
                `stashes`).
            weights: weights by stage.
            after: operations and tensors for which the loop waits before it begins.

        Returns:
            NestedMap(states: by stage, times: `[N, 3]` float64 seconds).
        """
        with tf.device(self._device):
            initial = []
            for stage, runner in zip(self.stages, self._runners, strict=True):
                num_slots = {
                    kind: table.num_slots[i]
                    for i, (owner, kind) in enumerate(self._stashes)
                    if owner == stage
                }
                own = weights[stage]
                initial.append(runner.begin(arguments, own, num_slots, self._trains))
            states, constants = map(list, zip(*initial, strict=True))
            with tf.control_dependencies(after):
                index = tf.identity(tf.constant(0))
            final = while_loop(
                lambda carried: carried.index < tf.shape(carried.rows)[0],
                self._run_operation,
                NestedMap(
                    index=index,
                    rows=tf.identity(table.rows),
                    times=tf.raw_ops.TensorListReserve(
                        num_elements=tf.shape(table.rows)[0],
                        element_shape=tf.constant([_NUM_TIMES]),
                        element_dtype=tf.float64,
                    ),
                    states=states,
                    constants=map_present(tf.identity, constants),
                ),
            )
            times = tf.raw_ops.TensorListStack(
                input_handle=final.times,
                element_shape=tf.constant([_NUM_TIMES]),
                element_dtype=tf.float64,
            )
            by_stage = dict(zip(self.stages, final.states, strict=True))
            return NestedMap(states=by_stage, times=times)

    def _run_operation(self, carried: NestedMap) -> NestedMap:
        """Runs the operation at `index` of the column: the loop's body."""
        branch, *row = tf.unstack(carried.rows[carried.index])
        index, times, states = tf.switch_case(
            branch,
            [
                functools.partial(self._run_branch, branch, carried, row)
                for branch in self._branches
            ],
        )
        return NestedMap(carried, index=index, times=times, states=states)

    def _run_branch(
        self, branch: Branch, carried: NestedMap, row: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, list[StageState]]:
        position = self.stages.index(branch.stage)
        before = carried.states[position]
        began = timestamp(self._device)
        with tf.control_dependencies([began]):
            operation = Operation(branch, carried.constants[position], *row)
            outcome = self._runners[position].run(operation, before)
        states = list(carried.states)
        states[position] = outcome.state
        old = {x.ref() for x in present(before)}
        new = [x for x in present(outcome.state) if x.ref() not in old]
        ended = outcome.ended
        if ended is None:
            # A stage without state or messages ends when it has started.
            with tf.control_dependencies([*new, *outcome.sent, outcome.started]):
                ended = timestamp(self._device)
        times = tf.raw_ops.TensorListSetItem(
            input_handle=carried.times,
            index=carried.index,
            item=tf.stack([began, outcome.started, ended]),
        )
        # Nothing else would make the sends run.
        with tf.control_dependencies(outcome.sent):
            return tf.identity(carried.index + 1), times, states
