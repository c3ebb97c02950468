"""A stage: consecutive layers, and the loss in the last, forward and backward.

    forward :  l0 -> l1 -> l2           each layer stashes its residuals
    backward:  l0 <- l1 <- l2           from its residuals

A layer's residuals come from the forward pass or from a recomputation; the backward
pass is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.loops.dataflow import saved_by_call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases, cut_list
from lingvo_pipe.pipeline.loops.stage_call import (
    PhaseInputs,
    StageCall,
    StashSlot,
    Values,
)
from lingvo_pipe.pipeline.loops.stash import Handles, PackOfPacks


class Stage:
    """The calls of one stage, one after another.

    Weights, sums, accumulators and stashes are packs of the calls' packs.

    Attributes:
        calls: the calls, in order.
        recomputed: for each call, whether its residuals are recomputed rather than
            stashed, in a schedule that recomputes.
        weights, sums, gradients, residuals, weight_residuals: the packings.
        for_recompute: the packing of the residuals that are stashed although the
            schedule recomputes.
    """

    def __init__(self, calls: Sequence[StageCall], recomputed: Sequence[bool]):
        self.calls = list(calls)
        self.recomputed = list(recomputed)
        functions = [call.functions for call in calls]
        residuals = [len(f.residuals.handles) for f in functions]
        self.weights = PackOfPacks([len(f.weights.handles) for f in functions])
        self.sums = PackOfPacks([len(f.sums.handles) for f in functions])
        self.gradients = PackOfPacks([len(f.gradients.handles) for f in functions])
        self.residuals = PackOfPacks(residuals)
        self.weight_residuals = PackOfPacks(
            [len(f.weight_residuals.handles) for f in functions]
        )
        self.for_recompute = PackOfPacks(
            [0 if r else n for r, n in zip(recomputed, residuals, strict=True)]
        )

    def pack_weights(self, weights: Sequence[Sequence[tf.Tensor]]) -> Handles:
        packed = [
            call.functions.pack_weights(*own)
            for call, own in zip(self.calls, weights, strict=True)
        ]
        return self.weights.pack(packed)

    def zero_sums(self) -> Handles:
        return self.sums.pack(self.of_calls(lambda f: f.zero_sums()))

    def zero_gradients(self) -> Handles:
        return self.gradients.pack(self.of_calls(lambda f: f.zero_gradients()))

    def unpack_sums(self, sums: Handles) -> list[list[tf.Tensor]]:
        calls = zip(self.calls, self.sums.unpack(sums), strict=True)
        return [call.functions.unpack_sums(*pack) for call, pack in calls]

    def of_calls(self, make: Callable[[PackedPhases], Handles]) -> list[Handles]:
        """Returns initial state for each call; calls of equal functions share it."""
        functions = [call.functions for call in self.calls]
        made = {f: make(f) for f in dict.fromkeys(functions)}
        return [made[f] for f in functions]

    @property
    def saved(self) -> list[int]:
        """The values from which the recomputation starts."""
        calls = [
            (call.used, call.call.made, is_recomputed)
            for call, is_recomputed in zip(self.calls, self.recomputed, strict=True)
        ]
        return [value for values in saved_by_call(calls) for value in values]

    def forward(
        self,
        given: PhaseInputs,
        values: Values,
        sums: Handles,
        slot: StashSlot | None,
        will_recompute: bool,
    ) -> tuple[Handles, Handles]:
        """Runs the layers, adding their outputs to `values`.

        Args:
            given: packed weights, and the micro-batch's context.
            values: values by number.
            sums: packed sums.
            slot: slot for the residuals; None if they are not stashed.
            will_recompute: whether the slot is only for the residuals of the calls that
                are not recomputed.

        Returns:
            The new sums and stash.
        """
        packing = self.for_recompute if will_recompute else self.residuals
        stashes = packing.unpack(slot.stash) if slot else [[] for _ in self.calls]
        new_sums, new_stashes = [], []
        for call, own, total, stash, is_recomputed in zip(
            self.calls,
            self._inputs_of_calls(given),
            self.sums.unpack(sums),
            stashes,
            self.recomputed,
            strict=True,
        ):
            into = None
            if slot and not (will_recompute and is_recomputed):
                into = StashSlot(stash, slot.slot)
            added, stash = call.forward(own, values, total, into)
            new_sums.append(added)
            new_stashes.append(stash)
        return self.sums.pack(new_sums), packing.pack(new_stashes) if slot else []

    def recompute(
        self,
        given: PhaseInputs,
        values: Values,
        stashed: StashSlot,
        residuals: StashSlot,
    ) -> tuple[Handles, Handles]:
        """Collects the residuals of all calls, from saved values and stashed residuals.

        Returns:
            Both stashes.
        """
        all_stashed, all_residuals = [], []
        for call, own, source, target, is_recomputed in zip(
            self.calls,
            self._inputs_of_calls(given),
            self.for_recompute.unpack(stashed.stash),
            self.residuals.unpack(residuals.stash),
            self.recomputed,
            strict=True,
        ):
            if is_recomputed:
                into = StashSlot(target, residuals.slot)
                target = call.recompute(own, values, into)
            elif target:
                slots = stashed.slot, residuals.slot
                both = call.functions.move(*source, slots[0], *target, slots[1])
                source, target = cut_list(both, len(source))
            all_stashed.append(source)
            all_residuals.append(target)
        return self.for_recompute.pack(all_stashed), self.residuals.pack(all_residuals)

    def backward(
        self,
        given: PhaseInputs,
        residuals: StashSlot,
        gradients: Values,
        accumulators: Handles,
    ) -> tuple[Handles, Handles]:
        """Runs the layers backward, adding gradients of values to `gradients`.

        Returns:
            The new stash and accumulators.
        """
        results = [
            call.backward(own, StashSlot(stash, residuals.slot), gradients, accumulated)
            for call, own, stash, accumulated in self._reversed(
                self._inputs_of_calls(given),
                self.residuals.unpack(residuals.stash),
                self.gradients.unpack(accumulators),
            )
        ]
        stashes, new_accumulators = zip(*reversed(results), strict=True)
        return self.residuals.pack(stashes), self.gradients.pack(new_accumulators)

    def input_backward(
        self,
        given: PhaseInputs,
        residuals: StashSlot,
        gradients: Values,
        late: StashSlot,
    ) -> tuple[Handles, Handles]:
        """Runs the layers backward; stashes weight residuals for `weight_backward`.

        Returns:
            Both stashes.
        """
        results = [
            call.input_backward(
                own,
                StashSlot(stash, residuals.slot),
                gradients,
                StashSlot(late_stash, late.slot),
            )
            for call, own, stash, late_stash in self._reversed(
                self._inputs_of_calls(given),
                self.residuals.unpack(residuals.stash),
                self.weight_residuals.unpack(late.stash),
            )
        ]
        stashes, all_late = zip(*reversed(results), strict=True)
        return self.residuals.pack(stashes), self.weight_residuals.pack(all_late)

    def weight_backward(
        self, given: PhaseInputs, late: StashSlot, accumulators: Handles
    ) -> tuple[Handles, Handles]:
        """Returns the new late stash, and accumulators with the weights' gradients."""
        results = [
            call.weight_backward(own, StashSlot(stash, late.slot), accumulated)
            for call, own, stash, accumulated in zip(
                self.calls,
                self._inputs_of_calls(given),
                self.weight_residuals.unpack(late.stash),
                self.gradients.unpack(accumulators),
                strict=True,
            )
        ]
        stashes, new_accumulators = zip(*results, strict=True)
        return self.weight_residuals.pack(stashes), self.gradients.pack(
            new_accumulators
        )

    def _inputs_of_calls(self, given: PhaseInputs) -> list[PhaseInputs]:
        weights = self.weights.unpack(given.weights)
        return [PhaseInputs(own, given.context) for own in weights]

    def _reversed(self, *packs: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        """Returns each call with its packs, last call first."""
        return reversed(list(zip(self.calls, *packs, strict=True)))
