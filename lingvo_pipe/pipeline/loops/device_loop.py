"""One device's loop over its column of the schedule.

The column is data: a row an operation, of branch, micro-batch and the slots where it
finds and puts what is kept. What is structure are the branches: which kinds of
operation the device runs on which stages. For each operation the loop notes when it
began to wait for its messages, when it had them, and when it was done.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.loops.clock import timestamp
from lingvo_pipe.pipeline.loops.operation import Outcome, Row
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.while_loop import while_loop
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import Kept
from lingvo_pipe.pipeline.schedules.table import Branch

_NUM_TIMES = 3


class DeviceLoop:
    """Runs one column: operations of the stages that live on one device.

    Attributes:
        stages: those.
    """

    def __init__(
        self,
        device: str,
        branches: Sequence[Branch],
        stashes: Sequence[tuple[int, Kept]],
        runners: Mapping[int, StageRunner],
    ):
        """Initialises the loop.

        Args:
            device: full name.
            branches: what its operations may be; see `table`.
            stashes: the stashes (stage, kept) that they use.
            runners: by stage, of all stages on the device.
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
            arguments: see `emit.emit`.
            table: NestedMap(rows=`[N, 4]` int32, num_slots=int32, one for each of
                `stashes`).
            weights: by stage.
            after: what must have run before it.

        Returns:
            NestedMap(states: by stage, times: `[N, 3]` float64 seconds).
        """
        with tf.device(self._device):
            begun = [
                runner.begin(
                    arguments,
                    weights[stage],
                    self._slots(stage, table.num_slots),
                    self._trains,
                )
                for stage, runner in zip(self.stages, self._runners, strict=True)
            ]
            states, constants = map(list, zip(*begun, strict=True))
            with tf.control_dependencies(after):
                index = tf.identity(tf.constant(0))
            final = while_loop(
                lambda carried: carried.index < tf.shape(carried.rows)[0],
                self._run_operation,
                NestedMap(
                    index=index,
                    rows=tf.identity(table.rows),
                    times=_no_times(tf.shape(table.rows)[0]),
                    states=states,
                    constants=map_present(tf.identity, constants),
                ),
            )
            return NestedMap(
                states=dict(zip(self.stages, final.states, strict=True)),
                times=_read_times(final.times),
            )

    def _slots(self, stage: int, num_slots: tf.Tensor) -> dict[Kept, tf.Tensor]:
        """How many slots each stash of a stage has."""
        return {
            kept: num_slots[i]
            for i, (home, kept) in enumerate(self._stashes)
            if home == stage
        }

    def _run_operation(self, carried: NestedMap) -> NestedMap:
        """The loop's body: runs the operation at `index` of the column."""
        branch, *row = tf.unstack(carried.rows[carried.index])
        index, times, states = tf.switch_case(
            branch,
            [
                functools.partial(self._run_branch, branch, carried, Row(*row))
                for branch in self._branches
            ],
        )
        return NestedMap(carried, index=index, times=times, states=states)

    def _run_branch(
        self, branch: Branch, carried: NestedMap, row: Row
    ) -> tuple[tf.Tensor, tf.Tensor, list[NestedMap]]:
        place = self.stages.index(branch.stage)
        before = carried.states[place]
        began = timestamp(self._device)
        with tf.control_dependencies([began]):
            outcome = self._runners[place].run(
                branch, before, carried.constants[place], row
            )
        states = list(carried.states)
        states[place] = outcome.state
        times = self._put_times(carried.times, carried.index, began, before, outcome)
        # Nothing else would make the sends run.
        with tf.control_dependencies(outcome.sent):
            return tf.identity(carried.index + 1), times, states

    def _put_times(
        self,
        times: tf.Tensor,
        index: tf.Tensor,
        began: tf.Tensor,
        before: NestedMap,
        outcome: Outcome,
    ) -> tf.Tensor:
        old = {x.ref() for x in present(before)}
        new = [x for x in present(outcome.state) if x.ref() not in old]
        # A stage without state or messages ends when it has started.
        ended = outcome.ended
        if ended is None:
            with tf.control_dependencies([*new, *outcome.sent, outcome.started]):
                ended = timestamp(self._device)
        return tf.raw_ops.TensorListSetItem(
            input_handle=times,
            index=index,
            item=tf.stack([began, outcome.started, ended]),
        )


def _no_times(num_operations: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListReserve(
        element_shape=tf.constant([_NUM_TIMES]),
        num_elements=num_operations,
        element_dtype=tf.float64,
    )


def _read_times(times: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListStack(
        input_handle=times,
        element_shape=tf.constant([_NUM_TIMES]),
        element_dtype=tf.float64,
    )
