"""Changes a stage's weights between the steps of one graph.

    gradient accumulators, sums  ->  update  ->  new weights, notes

The pipeline's caller supplies a function that changes the variables. The loop carries
the values that the variables have after the latest step. The stage's layers compute
with these values. Gradients of a tied weight, which has several paths in a model, are
summed here.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.loop_state import (
    StageConstants,
    StageState,
    UpdateConstants,
    UpdatedState,
)
from lingvo_pipe.pipeline.loops.out_of_line import call_unoptimized
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.run_data import LoopArguments
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stash import Pack, Stash
from lingvo_pipe.pipeline.tracing.trace import Trace

# `(layers, gradients, accumulated, step) -> notes`: updates the variables of layers.
# `gradients` are gradients of a step's mean loss, for each layer in the structure of
# its `vars`, with None for weights that are not trained. `accumulated` are sums, for
# each layer in the structure of its `accumulators`. `step` is `[]` int64. `notes` are
# any tensors of static shape, which are returned for each step.
Update = Callable[[Sequence[BaseLayer], list[Any], list[Any], tf.Tensor], list[Any]]


class StageUpdate:
    """The weight update of one stage, which runs after each step.

    Stashes keep each step's sums and the update's notes (see `Update`).
    """

    def __init__(
        self,
        update: Update,
        layers: Sequence[BaseLayer],
        traces: Sequence[Trace],
        stage: Stage,
        device: str,
    ):
        """Traces `update` for the stage's `layers`, in order, and their `traces`."""
        self._stage = stage
        phases = [layer.functions.phases for layer in stage.layers]
        self._num_weights = [len(of_layer.weights) for of_layer in phases]
        self._num_sums = [len(of_layer.sums) for of_layer in phases]
        self._sums = Stash([spec for of_layer in phases for spec in of_layer.sums])
        trained = [list(itertools.compress(p.weights, p.has_gradient)) for p in phases]
        specs = [*trained, *(p.sums for p in phases), [tf.TensorSpec([], tf.int64)]]

        def run(*flat: tf.Tensor) -> list[tf.Tensor]:
            *lists, (step,), _ = cut_list(flat, *map(len, specs))
            gradients = [
                pack_trained(layer.vars, p.has_gradient, layer_gradients)
                for layer, p, layer_gradients in zip(
                    layers, phases, lists, strict=False
                )
            ]
            sums = map(_accumulated, layers, traces, lists[len(phases) :])
            variables = [layer.vars for layer in layers]
            with tf.device(device):
                gradients = sum_tied(variables, gradients)
                notes = update(layers, gradients, list(sums), step)
            return [*map(read_variable, tf.nest.flatten(variables)), *notes]

        function = tf.function(run, autograph=False)
        self._function = function.get_concrete_function(*itertools.chain(*specs))
        notes = self._function.outputs[sum(self._num_weights) :]
        self._notes = Stash([tf.TensorSpec(x.shape, x.dtype) for x in notes])

    def constants(self, arguments: LoopArguments) -> UpdateConstants:
        """Returns tensors that every update uses: arguments, and captured tensors."""
        return UpdateConstants(
            divisors=arguments.divisors,
            micro_batches_per_step=arguments.run.micro_batches_per_step,
            captured=list(self._function.captured_inputs),
        )

    def begin(self, weights: Pack, arguments: LoopArguments) -> UpdatedState:
        """Returns the initial state, whose stashes have a slot for each step."""
        num_steps = tf.shape(arguments.divisors)[0]
        return UpdatedState(
            weights=weights,
            sums=self._sums.empty(num_steps),
            notes=self._notes.empty(num_steps),
        )

    def run(
        self, state: StageState, constants: StageConstants, micro_batch: tf.Tensor
    ) -> StageState:
        """Returns the state after the update at the end of a step.

        `micro_batch`, [] int32, is one of the step's micro-batches.
        """
        stage, own, before = self._stage, constants.of_update, state.updated
        assert own is not None
        assert before is not None
        n = micro_batch // own.micro_batches_per_step
        flat = itertools.chain.from_iterable(stage.unpack_sums(state.sums))
        pairs = zip(flat, self._sums.specs, strict=True)
        sums = [tf.cast(x, spec.dtype) for x, spec in pairs]
        divisor = own.divisors[n]
        packs = stage.gradients.unpack(state.gradients)
        gradients = [
            gradient
            for layer, pack in zip(stage.layers, packs, strict=True)
            for gradient in layer.functions.final_gradients(pack, divisor)
        ]
        args = [*gradients, *sums, constants.step[micro_batch], *own.captured]
        results = call_unoptimized(self._function, args)
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
        """Returns the sums of each layer, and the notes. Both are stacked by step."""
        *sums, _ = cut_list(self._sums.stacked(updated.sums), *self._num_sums)
        return sums, self._notes.stacked(updated.notes)


def sum_tied(variables: Any, gradients: Any) -> Any:
    """Sums the gradients of each variable that occurs several times in `variables`.

    Returns the gradients in the same structure, with the sum at a variable's first
    position and None at the variable's other positions.
    """
    positions: dict[Any, list[int]] = {}
    for i, variable in enumerate(tf.nest.flatten(variables)):
        positions.setdefault(variable.ref(), []).append(i)
    flat = tf.nest.flatten(gradients)
    for variable, (first, *later_positions) in positions.items():
        with tf.device(variable.deref().device):
            for i in later_positions:
                if flat[i] is not None:
                    flat[first] = (
                        flat[i] if flat[first] is None else flat[first] + flat[i]
                    )
                flat[i] = None
    return tf.nest.pack_sequence_as(variables, flat)


def pack_trained(
    theta: Any, has_gradient: Sequence[bool], flat: Sequence[tf.Tensor]
) -> Any:
    """Packs gradients into the structure of `theta`, None for untrained weights."""
    remaining = iter(flat)
    gradients = [next(remaining) if has else None for has in has_gradient]
    return tf.nest.pack_sequence_as(theta, gradients)


def read_variable(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value, read by a single operation."""
    handle, dtype = variable.handle, variable.dtype
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _accumulated(layer: BaseLayer, trace: Trace, flat: Sequence[tf.Tensor]) -> Any:
    sums: NestedMap = tf.nest.pack_sequence_as(trace.result.sums, flat)
    accumulators = sums.get("accumulated", {})
    return layer.AccumulatedTree(
        {f"{layer.path}/{k}": x for k, x in accumulators.items()}
    )
