"""One device's loop over its column of the schedule.

The column is data: each row is an operation, with its branch, micro-batch and the slots
that it reads and writes. The branches are structure: the kinds of operation that the
device runs on its stages. For each operation the loop records when it began to wait
for its messages, when it had received them, and when it finished.
"""

import functools
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.loop_state import Operation, StageState
from lingvo_pipe.pipeline.loops.stage_runner import StageRunner
from lingvo_pipe.pipeline.loops.stash import Stash
from lingvo_pipe.pipeline.loops.while_loop import timestamp, while_loop
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.table import Branch, Table

# Three times for each operation.
_TIMES = Stash([tf.TensorSpec([3], tf.float64)])


class DeviceLoop:
    """The loop of one column: the operations of the stages of one device."""

    def __init__(self, device: str, table: Table, runners: Sequence[StageRunner]):
        """Initializes the loop; `runners` has one for each stage."""
        self.device = device
        self._branches, self._stashes = table.branches, table.stashes
        self.stages = sorted({branch.stage for branch in table.branches})
        self._runners = [runners[stage] for stage in self.stages]
        self._trains = any(branch.kind is Kind.BACKWARD for branch in table.branches)

    def emit(
        self,
        arguments: NestedMap,
        table: NestedMap,
        after: Sequence[tf.Operation | tf.Tensor],
    ) -> NestedMap:
        """Emits the loop on the current device, to begin `after` these.

        `table` is NestedMap(rows=`[N, 4]` int32, num_slots=int32, one for each of the
        table's `stashes`); see `Emitter.emit` for `arguments`.

        Returns:
            NestedMap(states: by stage, times: `[N, 3]` float64 seconds).
        """
        initial = []
        for stage, runner in zip(self.stages, self._runners, strict=True):
            num_slots = {
                kind: table.num_slots[i]
                for i, (owner, kind) in enumerate(self._stashes)
                if owner == stage
            }
            own = arguments.weights[stage]
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
                times=_TIMES.empty(tf.shape(table.rows)[0]),
                states=states,
                constants=map_present(tf.identity, constants),
            ),
        )
        (times,) = _TIMES.stacked(final.times)
        by_stage = dict(zip(self.stages, final.states, strict=True))
        return NestedMap(states=by_stage, times=times)

    def _run_operation(self, carried: NestedMap) -> NestedMap:
        """Runs the operation at `index` of the column: the loop's body."""
        branch, *row = tf.unstack(carried.rows[carried.index])
        run = functools.partial(self._run_branch, carried, row)
        branches = [functools.partial(run, branch) for branch in self._branches]
        index, times, states = tf.switch_case(branch, branches)
        return NestedMap(carried, index=index, times=times, states=states)

    def _run_branch(
        self, carried: NestedMap, row: Sequence[tf.Tensor], branch: Branch
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
            # A stage without state or messages ends when it has started.
            with tf.control_dependencies([*new, *outcome.sent, outcome.started]):
                ended = timestamp(self.device)
        row_times = tf.stack([began, outcome.started, ended])
        times = _TIMES.put(carried.times, carried.index, [row_times])
        # Nothing else would make the sends run.
        with tf.control_dependencies(outcome.sent):
            return tf.identity(carried.index + 1), times, states
