"""One layer's functions at its place in the model.

What is called here emits operations into the graph being built; the layer's own
functions stay out of line. Values and their gradients are held in dicts by the numbers
that `dataflow` gives them.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.optional_nest import present
from lingvo_pipe.pipeline.loops.dataflow import Call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases, cut_list
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.tracing.trace import Surroundings, is_differentiable

Values = dict[int, tf.Tensor]


class StashSlot(NamedTuple):
    """A packed stash, and one of its slots, `[]` int32."""

    stash: Handles
    slot: tf.Tensor


class StageCall:
    """One layer's functions at its place in the model.

    Weights, sums, residuals and totals are packed; see `PackedPhases`.
    """

    def __init__(self, functions: PackedPhases, call: Call, path_hash: int | None):
        """Initialises the call.

        Args:
            functions: the layer's, or the loss's.
            call: which values go in and come out.
            path_hash: of the layer's path; None for the loss.
        """
        self.functions = functions
        self.call = call
        self._path_hash = path_hash

    @property
    def used(self) -> list[int]:
        """The values that the forward pass is given."""
        return [self.call.args[i] for i in self.functions.phases.used]

    def forward(
        self,
        weights: Handles,
        told: Surroundings,
        values: Values,
        sums: Handles,
        slot: StashSlot | None,
    ) -> tuple[Handles, Handles]:
        """Adds what the layer makes to `values`, and keeps residuals in a slot, if any.

        Returns:
            Sums, and the stash.
        """
        given = [*weights, *self._told(told), *[values[v] for v in self.used], *sums]
        if slot is None:
            results = self.functions.forward(*given)
        else:
            results = self.functions.forward_keep(*given, *slot.stash, slot.slot)
        made, sums, stash = cut_list(results, len(self.call.made), len(sums))
        values.update(zip(self.call.made, made, strict=True))
        return sums, stash

    def recompute(
        self, weights: Handles, told: Surroundings, values: Values, slot: StashSlot
    ) -> Handles:
        """Adds what the layer makes to `values`; returns the stash with residuals."""
        args = [values[value] for value in self.used]
        results = self.functions.recompute(
            *weights, *self._told(told), *args, *slot.stash, slot.slot
        )
        made, stash = cut_list(results, len(self.call.made))
        values.update(zip(self.call.made, made, strict=True))
        return stash

    def backward(
        self,
        weights: Handles,
        told: Surroundings,
        slot: StashSlot,
        gradients: Values,
        totals: Handles,
    ) -> tuple[Handles, Handles]:
        """Adds gradients of inputs to `gradients`.

        Returns:
            The stash, and the totals with the gradients of the weights.
        """
        given = [*weights, *self._told(told), *slot.stash, slot.slot]
        results = self.functions.backward(*given, *self._seeds(gradients), *totals)
        rest = self._add_gradients(gradients, results)
        stash, totals = cut_list(rest, len(slot.stash))
        return stash, totals

    def input_backward(
        self,
        weights: Handles,
        told: Surroundings,
        slot: StashSlot,
        gradients: Values,
        later: StashSlot,
    ) -> tuple[Handles, Handles]:
        """As `backward`, but keeps what `weight_backward` needs in the slot `later`.

        Returns:
            Both stashes.
        """
        given = [*weights, *self._told(told), *slot.stash, slot.slot]
        seeds = self._seeds(gradients)
        results = self.functions.input_backward(
            *given, *seeds, *later.stash, later.slot
        )
        rest = self._add_gradients(gradients, results)
        stash, laters = cut_list(rest, len(slot.stash))
        return stash, laters

    def weight_backward(
        self, weights: Handles, told: Surroundings, slot: StashSlot, totals: Handles
    ) -> tuple[Handles, Handles]:
        """The stash, and the totals with the gradients of the weights."""
        given = [*weights, *self._told(told), *slot.stash, slot.slot]
        results = self.functions.weight_backward(*given, *totals)
        stash, totals = cut_list(results, len(slot.stash))
        return stash, totals

    def _seeds(self, gradients: Values) -> list[tf.Tensor]:
        """The gradients of what the layer made; 0 where there is none."""
        made = zip(self.call.made, self.functions.phases.made, strict=True)
        return [
            gradients[value] if value in gradients else tf.zeros(spec.shape, spec.dtype)
            for value, spec in made
            if is_differentiable(spec)
        ]

    def _add_gradients(
        self, gradients: Values, results: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds the gradients of inputs, the first results; returns the others."""
        gives = self.functions.phases.gives
        found, rest = cut_list(results, len(gives))
        for i, gradient in zip(gives, found, strict=True):
            value = self.call.args[i]
            before = gradients.get(value)
            gradients[value] = gradient if before is None else before + gradient
        return rest

    def _told(self, surroundings: Surroundings) -> list[tf.Tensor]:
        if self._path_hash is None:
            return present(surroundings._replace(loss_scale=None))
        path_hash = tf.constant(self._path_hash, tf.uint64)
        return present(surroundings._replace(path_hash=path_hash))
