"""One layer's functions, called with the values at its position in the model.

The methods emit calls into the graph being built; the layer's own functions stay out of
line. Values and their gradients are in dicts by the numbers that `dataflow` uses.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.pipeline.loops.dataflow import Call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases, cut_list
from lingvo_pipe.pipeline.loops.stash import Handles
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

Values = dict[int, tf.Tensor]


class StashSlot(NamedTuple):
    """A packed stash, and one of its slots, `[]` int32."""

    stash: Handles
    slot: tf.Tensor


class PhaseInputs(NamedTuple):
    """The inputs common to all phases: packed weights, and the call context."""

    weights: Handles
    context: CallContext


class StageCall:
    """One layer's functions, called with the values at its position in the model.

    Weights, sums, stashes and accumulators are packed; see `PackedPhases`.
    """

    def __init__(self, functions: PackedPhases, call: Call, path_hash: int | None):
        """Initialises the call.

        Args:
            functions: the layer's functions, or the loss's.
            call: the numbers of its values.
            path_hash: hash of the layer's path; None for the loss.
        """
        self.functions = functions
        self.call = call
        self._path_hash = path_hash

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
        args = [*self._flat(given), *[values[v] for v in self.used], *sums]
        if slot is None:
            results = self.functions.forward(*args)
        else:
            results = self.functions.forward_stash(*args, *slot.stash, slot.slot)
        made, sums, stash = cut_list(results, len(self.call.made), len(sums))
        values.update(zip(self.call.made, made, strict=True))
        return sums, stash

    def recompute(self, given: PhaseInputs, values: Values, slot: StashSlot) -> Handles:
        """Adds the layer's outputs to `values`; returns the stash with residuals."""
        args = [values[value] for value in self.used]
        results = self.functions.recompute(
            *self._flat(given), *args, *slot.stash, slot.slot
        )
        made, stash = cut_list(results, len(self.call.made))
        values.update(zip(self.call.made, made, strict=True))
        return stash

    def backward(
        self,
        given: PhaseInputs,
        slot: StashSlot,
        gradients: Values,
        accumulators: Handles,
    ) -> tuple[Handles, Handles]:
        """Adds gradients of inputs to `gradients`.

        Returns:
            The new stash and accumulators.
        """
        args = [*self._flat(given), *slot.stash, slot.slot]
        results = self.functions.backward(*args, *self._seeds(gradients), *accumulators)
        return self._add_gradients(gradients, results, slot)

    def input_backward(
        self, given: PhaseInputs, slot: StashSlot, gradients: Values, late: StashSlot
    ) -> tuple[Handles, Handles]:
        """Adds gradients of inputs; stashes weight residuals for `weight_backward`.

        Returns:
            Both stashes.
        """
        args = [*self._flat(given), *slot.stash, slot.slot]
        seeds = self._seeds(gradients)
        results = self.functions.input_backward(*args, *seeds, *late.stash, late.slot)
        return self._add_gradients(gradients, results, slot)

    def weight_backward(
        self, given: PhaseInputs, late: StashSlot, accumulators: Handles
    ) -> tuple[Handles, Handles]:
        """Returns the new late stash, and accumulators with the weights' gradients."""
        args = [*self._flat(given), *late.stash, late.slot]
        results = self.functions.weight_backward(*args, *accumulators)
        stash, accumulators = cut_list(results, len(late.stash))
        return stash, accumulators

    def _seeds(self, gradients: Values) -> list[tf.Tensor]:
        """Returns the gradients of the layer's outputs; 0 where there is none."""
        made = zip(self.call.made, self.functions.phases.made, strict=True)
        return [
            gradients[value] if value in gradients else tf.zeros(spec.shape, spec.dtype)
            for value, spec in made
            if is_differentiable(spec)
        ]

    def _add_gradients(
        self, gradients: Values, results: list[tf.Tensor], slot: StashSlot
    ) -> tuple[Handles, Handles]:
        """Adds the gradients of inputs, the first results; returns stash and rest."""
        gives = self.functions.phases.gives
        found, stash, rest = cut_list(results, len(gives), len(slot.stash))
        for i, gradient in zip(gives, found, strict=True):
            value = self.call.args[i]
            before = gradients.get(value)
            gradients[value] = gradient if before is None else before + gradient
        return stash, rest

    def _flat(self, given: PhaseInputs) -> list[tf.Tensor]:
        if self._path_hash is None:
            context = given.context._replace(loss_scale=None)
        else:
            path_hash = tf.constant(self._path_hash, tf.uint64)
            context = given.context._replace(path_hash=path_hash)
        return [*given.weights, *present(context)]
