"""One layer's functions, called with the values at its position in the model.

The methods emit calls into the graph being built; the layer's own functions stay out of
line. Values and their gradients are in dicts by the numbers that `dataflow` uses.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.pipeline.loops.dataflow import Call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stash import Handles, StashSlot
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

Values = dict[int, tf.Tensor]


class PhaseInputs(NamedTuple):
    """The inputs common to all phases: packed weights, and the call context.

    A stage's inputs have `path_hashes`, the packed hashes of its layers' paths. Where
    the context of a call has no path hash, the call's own counts.
    """

    weights: Handles
    context: CallContext
    path_hashes: Handles | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class StageCall:
    """One layer's functions, called with the values at its position in the model.

    Weights, sums, stashes and accumulators are packed; see `PackedPhases`.

    Attributes:
        functions: the layer's functions, or the loss's.
        call: the numbers of its values.
        path_hash: hash of the layer's path; None for the loss.
    """

    functions: PackedPhases
    call: Call
    path_hash: int | None

    @property
    def used(self) -> list[int]:
        """The values that the forward pass takes."""
        return [self.call.args[i] for i in self.functions.phases.used]

    def forward(
        self, given: PhaseInputs, values: Values, sums: Handles, slot: StashSlot | None
    ) -> tuple[Handles, Handles]:
        """Adds the layer's outputs to `values`; stashes residuals if there is a slot.

        Returns:
            The new sums and stash.
        """
        run = self.functions.forward if slot is None else self.functions.forward_stash
        made, new_sums, stash = run(*self._inputs(given, values), sums, slot)
        self._add(made, values)
        return new_sums, stash

    def recompute(
        self, given: PhaseInputs, values: Values, slot: StashSlot, makes_outputs: bool
    ) -> Handles:
        """Returns the stash with residuals; may add the outputs to `values`.

        XLA compiles a layer as a whole, so there leaving out outputs saves nothing.
        """
        inputs = self._inputs(given, values)
        if not (makes_outputs or self.functions.phases.compilation.by_xla):
            return self.functions.recompute_residuals(*inputs, [], slot)[2]
        made, _, stash = self.functions.recompute(*inputs, [], slot)
        self._add(made, values)
        return stash

    def backward(
        self,
        given: PhaseInputs,
        residuals: StashSlot,
        gradients: Values,
        into: Handles | StashSlot,
    ) -> tuple[Handles, Handles]:
        """Adds gradients of inputs to `gradients`; see `Stage.backward`."""
        functions, delays = self.functions, isinstance(into, StashSlot)
        run = functions.input_backward if delays else functions.backward
        shared = self._flat(given)
        found, stash, rest = run(shared, residuals, self._seeds(gradients), into)
        for i, gradient in zip(functions.phases.gives, found, strict=True):
            value = self.call.args[i]
            before = gradients.get(value)
            gradients[value] = gradient if before is None else before + gradient
        return stash, rest

    def weight_backward(
        self, given: PhaseInputs, late: StashSlot, accumulators: Handles
    ) -> tuple[Handles, Handles]:
        """Returns the new late stash, and accumulators with the weights' gradients."""
        return self.functions.weight_backward(self._flat(given), late, accumulators)

    def _inputs(self, given: PhaseInputs, values: Values) -> tuple[Handles, Handles]:
        return self._flat(given), [values[v] for v in self.used]

    def _add(self, made: list[tf.Tensor], values: Values) -> None:
        values.update(zip(self.call.made, made, strict=True))

    def _seeds(self, gradients: Values) -> list[tf.Tensor]:
        """Returns the gradients of the layer's outputs; 0 where there is none."""
        made = zip(self.call.made, self.functions.phases.made, strict=True)
        return [
            gradient_or_zeros(gradients, value, spec)
            for value, spec in made
            if is_differentiable(spec)
        ]

    def _flat(self, given: PhaseInputs) -> list[tf.Tensor]:
        context = given.context
        if self.path_hash is None:
            context = context._replace(path_hash=None, loss_scale=None)
        elif context.path_hash is None:
            path_hash = tf.constant(self.path_hash, tf.uint64)
            context = context._replace(path_hash=path_hash)
        return [*given.weights, *present(context)]


def gradient_or_zeros(gradients: Values, value: int, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a value's gradient; 0 if there is none."""
    return gradients[value] if value in gradients else tf.zeros(spec.shape, spec.dtype)
