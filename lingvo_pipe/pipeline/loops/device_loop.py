"""The loop of one device, which runs the device's operations in schedule order.

The operations are rows of a table, which is fed as data (`schedules/table.py`). The
loop records when each operation began to wait for its messages, when it had received
them, and when it finished.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.pipeline.loops.loop_state import Operation, StageConstants, StageState
from lingvo_pipe.pipeline.loops.run_data import LoopArguments
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.stash import Stash
from lingvo_pipe.pipeline.loops.while_loop import timestamp, while_loop
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.table import Branch, FedTable, Table

# Three timestamps for each operation.
_TIMES = Stash([tf.TensorSpec([3], tf.float64)])


class _Carried(NamedTuple):
    """The loop's state: the arguments and results of one iteration."""

    constants: list[StageConstants]
    index: tf.Tensor  # [] int32, index of the row.
    rows: tf.Tensor
    states: list[StageState]
    times: list[tf.Tensor]


class DeviceLoop:
    """The loop that runs the operations of one device."""

    def __init__(self, device: str, table: Table, runners: Sequence[StageRunner]):
        """Initializes the loop. `runners` has a runner for each stage of a pipeline."""
        self.device = device
        self._branches, self._stashes = table.branches, table.stashes
        self.stages = sorted({branch.stage for branch in table.branches})
        self._runners = [runners[stage] for stage in self.stages]
        self._trains = table.trains

    def emit(
        self,
        arguments: LoopArguments,
        table: FedTable,
        after: Sequence[tf.Operation | tf.Tensor],
    ) -> tuple[dict[int, StageState], tf.Tensor]:
        """Adds the loop to the graph. The loop begins when all of `after` has run.

        Returns the final states by stage, and the times of operations (`LoopResults`).
        """
        initial = []
        for stage, runner in zip(self.stages, self._runners, strict=True):
            num_slots = {
                kind: table.num_slots[i]
                for i, (owner, kind) in enumerate(self._stashes)
                if owner == stage
            }
            weights = arguments.weights[stage]
            initial.append(runner.begin(arguments, weights, num_slots, self._trains))
        states, constants = map(list, zip(*initial, strict=True))
        with tf.control_dependencies(after):
            index = tf.identity(tf.constant(0))
        final = while_loop(
            lambda carried: carried.index < tf.shape(carried.rows)[0],
            self._run_operation,
            _Carried(
                constants=map_present(tf.identity, constants),
                index=index,
                rows=tf.identity(table.rows),
                states=states,
                times=_TIMES.empty(tf.shape(table.rows)[0]),
            ),
        )
        (times,) = _TIMES.stacked(final.times)
        return dict(zip(self.stages, final.states, strict=True)), times

    def count(self, table: FedTable, stage: int, kind: Kind) -> tf.Tensor:
        """Returns the number of the loop's operations of a kind on a stage."""
        is_of_kind = [(b.stage, b.kind) == (stage, kind) for b in self._branches]
        counted = tf.gather(tf.constant(is_of_kind, tf.int32), table.rows[:, 0])
        return tf.reduce_sum(counted)

    def _run_operation(self, carried: _Carried) -> _Carried:
        branch, *row = tf.unstack(carried.rows[carried.index])
        run = functools.partial(self._run_branch, carried, row)
        branches = [functools.partial(run, branch) for branch in self._branches]
        index, times, states = tf.switch_case(branch, branches)
        return carried._replace(index=index, times=times, states=states)

    def _run_branch(
        self, carried: _Carried, row: Sequence[tf.Tensor], branch: Branch
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[StageState]]:
        position = self.stages.index(branch.stage)
        before = carried.states[position]
        began = timestamp(self.device)
        with tf.control_dependencies([began]):
            operation = Operation(branch, carried.constants[position], *row)
            run = self._runners[position].operations[branch.kind]
            outcome = run(operation, before)
        states = list(carried.states)
        states[position] = outcome.state
        old = {x.ref() for x in present(before)}
        new = [x for x in present(outcome.state) if x.ref() not in old]
        ended = outcome.ended
        if ended is None:
            # An operation without new state and messages ends when it has started.
            with tf.control_dependencies([*new, *outcome.sent, outcome.started]):
                ended = timestamp(self.device)
        row_times = tf.stack([began, outcome.started, ended])
        times = _TIMES.put(carried.times, carried.index, [row_times])
        # Nothing else would make the sends run.
        with tf.control_dependencies(outcome.sent):
            return tf.identity(carried.index + 1), times, states
