"""Changes a stage's weights between the steps of one graph.

    gradient accumulators, sums  ->  update  ->  new weights, notes

The pipeline's caller supplies a function that changes the variables. The loop carries
the variables' values after the last step. The stage's layers compute with these.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import unoptimized_config
from lingvo_pipe.pipeline.loops.loop_state import (
    StageConstants,
    StageState,
    UpdateConstants,
    UpdatedState,
)
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.run_data import LoopArguments
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stash import Pack, Stash


class StageUpdate:
    """The update of one stage, with a stash of each step's sums and notes."""

    def __init__(self, stage: Stage, function: Any):
        """Initializes the update.

        Args:
            stage: the stage.
            function: a concrete function `(gradients, sums, step) -> weights, notes`,
                all flat: gradients of the mini-batch's mean loss, in the dtypes of
                their weights; step, `[]` int64; notes, any tensors of static shape.
        """
        self._stage = stage
        self._function = function
        phases = [layer.functions.phases for layer in stage.layers]
        self._num_weights = [len(of_layer.weights) for of_layer in phases]
        self._num_sums = [len(of_layer.sums) for of_layer in phases]
        self._sums = Stash([spec for of_layer in phases for spec in of_layer.sums])
        notes = function.outputs[sum(self._num_weights) :]
        self._notes = Stash([tf.TensorSpec(x.shape, x.dtype) for x in notes])

    def constants(self, arguments: LoopArguments) -> UpdateConstants:
        """Returns the arguments that the update uses, and its captures."""
        return UpdateConstants(
            divisors=arguments.divisors,
            micro_batches_per_step=arguments.micro_batches_per_step,
            captured=list(self._function.captured_inputs),
        )

    def begin(self, weights: Pack, arguments: LoopArguments) -> UpdatedState:
        """Returns packed weights, and stashes of sums and notes, a slot per step."""
        num_steps = tf.shape(arguments.divisors)[0]
        return UpdatedState(
            weights=weights,
            sums=self._sums.empty(num_steps),
            notes=self._notes.empty(num_steps),
        )

    def run(
        self, state: StageState, constants: StageConstants, micro_batch: tf.Tensor
    ) -> StageState:
        """Returns the state after the step that ends with `micro_batch`, `[]` int32."""
        stage, update_constants, before = (
            self._stage,
            constants.of_update,
            state.updated,
        )
        assert update_constants is not None
        assert before is not None
        n = micro_batch // update_constants.micro_batches_per_step
        sums = [x for layer in stage.unpack_sums(state.sums) for x in layer]
        divisor = update_constants.divisors[n]
        packs = stage.gradients.unpack(state.gradients)
        gradients = [
            gradient
            for layer, pack in zip(stage.layers, packs, strict=True)
            for gradient in layer.functions.final_gradients(pack, divisor)
        ]
        outputs = self._function.outputs
        results = tf.raw_ops.StatefulPartitionedCall(
            args=[
                *gradients,
                *sums,
                constants.step[micro_batch],
                *update_constants.captured,
            ],
            Tout=[x.dtype for x in outputs],
            f=self._function,
            config_proto=unoptimized_config(),
        )
        if not outputs:  # A stage without weights: TensorFlow returns the operation.
            results = []
        for result, x in zip(results, outputs, strict=True):
            result.set_shape(x.shape)
        *weights, notes = cut_list(results, *self._num_weights)
        updated = UpdatedState(
            weights=stage.pack_weights(weights),
            sums=self._sums.put(before.sums, n, sums),
            notes=self._notes.put(before.notes, n, notes),
        )
        sums, gradients = stage.zero_sums(), stage.zero_gradients()
        return state._replace(sums=sums, gradients=gradients, updated=updated)

    def results(
        self, updated: UpdatedState
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        """Returns the sums of each layer, and the notes, stacked by step."""
        *sums, _ = cut_list(self._sums.stacked(updated.sums), *self._num_sums)
        return sums, self._notes.stacked(updated.notes)
