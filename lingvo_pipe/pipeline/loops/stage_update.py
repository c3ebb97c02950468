"""Changes a stage's weights between the steps of one graph.

    totals of gradients, sums  ->  update  ->  new weights, notes

The variables themselves are changed by a function that is handed to the pipeline; the
loop carries the values that they had after the last step, which are what the stage's
layers compute with.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import as_it_is
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stash import Stash


class StageUpdate:
    """The update of one stage.

    What a step leaves is kept for the end: the totals of its sums, and notes.
    """

    def __init__(self, stage: Stage, function: Any):
        """Initialises the update.

        Args:
            stage: the stage.
            function: a concrete function `(gradients, sums, step) -> weights, notes`,
                all flat: gradients of the mini-batch's mean loss, in the dtypes of the
                weights that have any; `[]` int64; any tensors of static shape.
        """
        self._stage = stage
        self._function = function
        phases = [call.functions.phases for call in stage.calls]
        self._num_weights = [len(each.weights) for each in phases]
        self._num_sums = [len(each.sums) for each in phases]
        self._sums = Stash([spec for each in phases for spec in each.sums])
        notes = function.outputs[sum(self._num_weights) :]
        self._notes = Stash([tf.TensorSpec(x.shape, x.dtype) for x in notes])

    def constants(self, arguments: NestedMap) -> NestedMap:
        """What the update uses of the pipeline's arguments, and variables' handles."""
        return NestedMap(
            divisors=arguments.divisors,
            micro_batches_per_step=arguments.micro_batches_per_step,
            captured=list(self._function.captured_inputs),
        )

    def begin(self, weights: Handles, arguments: NestedMap) -> NestedMap:
        """The state before the first step.

        Returns:
            NestedMap:
                weights: packed.
                sums: contents of the stash of sums, a slot a step.
                notes: likewise of notes.
        """
        num_steps = tf.shape(arguments.divisors)[0]
        return NestedMap(
            weights=weights,
            sums=self._sums.empty(num_steps),
            notes=self._notes.empty(num_steps),
        )

    def run(
        self, state: NestedMap, constants: NestedMap, micro_batch: tf.Tensor
    ) -> NestedMap:
        """The state after the step whose last micro-batch is given, `[]` int32."""
        stage, told, before = self._stage, constants.of_update, state.updated
        n = micro_batch // told.micro_batches_per_step
        sums = [x for own in stage.unpack_sums(state.sums) for x in own]
        results = tf.raw_ops.StatefulPartitionedCall(
            args=[
                *self._gradients(state.gradients, told.divisors[n]),
                *sums,
                constants.step[micro_batch],
                *told.captured,
            ],
            Tout=[x.dtype for x in self._function.outputs],
            f=self._function,
            config_proto=as_it_is(),
        )
        for result, x in zip(results, self._function.outputs, strict=True):
            result.set_shape(x.shape)
        *weights, notes = cut_list(results, *self._num_weights)
        updated = NestedMap(
            weights=stage.pack_weights(weights),
            sums=self._sums.put(before.sums, n, sums),
            notes=self._notes.put(before.notes, n, notes),
        )
        return NestedMap(
            state,
            sums=stage.zero_sums(),
            gradients=stage.zero_gradients(),
            updated=updated,
        )

    def noted(self, updated: NestedMap) -> NestedMap:
        """What the steps left, stacked by step.

        Returns:
            NestedMap(sums: for each call the totals of its sums, notes: a list).
        """
        *sums, _ = cut_list(self._sums.stacked(updated.sums), *self._num_sums)
        return NestedMap(sums=sums, notes=self._notes.stacked(updated.notes))

    def _gradients(self, totals: Handles, divisor: tf.Tensor) -> list[tf.Tensor]:
        calls = zip(
            self._stage.calls, self._stage.gradients.unpack(totals), strict=True
        )
        return list(
            itertools.chain.from_iterable(
                call.functions.final_gradients(*packed, divisor)
                for call, packed in calls
            )
        )
