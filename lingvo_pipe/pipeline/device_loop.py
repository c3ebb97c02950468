"""One device's loop over its column of the schedule.

A functional While that stays one node in the graph: it is not lowered to control-flow
operations, so each iteration is a function call on the device, and messages of a
channel carry no iteration number but queue in the order they were sent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.optional_nest import (
    map_present,
    pack_present,
    present,
    spec_of,
)
from lingvo_pipe.pipeline.schedule import Kind, Op
from lingvo_pipe.pipeline.stage_runner import StageRunner


class DeviceLoop:
    """Runs one column: operations of the stages that live on one device."""

    def __init__(
        self, device: str, column: Sequence[Op], runners: Mapping[int, StageRunner]
    ):
        """Initialises the loop.

        Args:
            device: full name.
            column: the operations, in order.
            runners: by stage, of all stages in the column.
        """
        self._device = device
        self._stages = sorted({op.stage for op in column})
        self._runners = [runners[stage] for stage in self._stages]
        self._branches = sorted({(op.stage, op.kind.value) for op in column})
        self.table = [
            (self._branches.index((op.stage, op.kind.value)), op.micro_batch)
            for op in column
        ]

    def emit(self, column: tf.Tensor, arguments: NestedMap) -> dict[int, NestedMap]:
        """Emits the loop into the current graph.

        Args:
            column: `[N, 2]` int32, as `table`.
            arguments: see `emit.emit`.

        Returns:
            The final state of each stage.
        """
        with tf.device(self._device):
            constants = [
                runner.constants(arguments, arguments.thetas[stage])
                for stage, runner in zip(self._stages, self._runners, strict=True)
            ]
            states = [
                runner.initial(constant)
                for runner, constant in zip(self._runners, constants, strict=True)
            ]
            final = _while(
                self._run_operation,
                NestedMap(
                    index=tf.constant(0),
                    column=tf.identity(column),
                    states=states,
                    constants=map_present(tf.identity, constants),
                ),
            )
        return dict(zip(self._stages, final.states, strict=True))

    def _run_operation(self, carried: NestedMap) -> NestedMap:
        """The loop's body: runs the operation at `index` of the column."""
        branch, micro_batch = tf.unstack(carried.column[carried.index])
        index, states = tf.switch_case(
            branch,
            [
                functools.partial(
                    self._run_branch, stage, Kind(kind), carried, micro_batch
                )
                for stage, kind in self._branches
            ],
        )
        return NestedMap(carried, index=index, states=states)

    def _run_branch(
        self, stage: int, kind: Kind, carried: NestedMap, micro_batch: tf.Tensor
    ) -> tuple[tf.Tensor, list[NestedMap]]:
        place = self._stages.index(stage)
        runner = self._runners[place]
        run = {Kind.FORWARD: runner.forward, Kind.BACKWARD: runner.backward}[kind]
        new_state, must_run = run(
            carried.states[place], carried.constants[place], micro_batch
        )
        # Nothing else would make the sends run.
        with tf.control_dependencies(must_run):
            index = tf.identity(carried.index + 1)
        states = list(carried.states)
        states[place] = new_state
        return index, states


def _while(body: Any, carried: NestedMap) -> NestedMap:
    """Runs `body` on what is carried until `index` reaches the end of `column`."""
    tensors = present(carried)
    pack = functools.partial(pack_present, carried)

    def flat_body(*flat: tf.Tensor) -> list[tf.Tensor]:
        return present(body(pack(flat)))

    def flat_condition(*flat: tf.Tensor) -> tf.Tensor:
        state = pack(flat)
        return state.index < tf.shape(state.column)[0]

    specs = list(map(spec_of, tensors))
    results = tf.raw_ops.While(
        input=tensors,
        cond=tf.compat.v1.wrap_function(flat_condition, specs),
        body=tf.compat.v1.wrap_function(flat_body, specs),
        output_shapes=[x.shape for x in tensors],
        parallel_iterations=1,
    )
    return pack(
        [tf.ensure_shape(r, x.shape) for r, x in zip(results, tensors, strict=True)]
    )
