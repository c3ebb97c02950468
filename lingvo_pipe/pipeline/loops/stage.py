"""A stage: consecutive layers, and the loss in the last, forward and backward.

    forward :  l0 -> l1 -> l2           what each layer keeps: its residuals
    backward:  l0 <- l1 <- l2           from these

A layer's residuals are kept by the forward pass or made later by a recomputation; which
of the two makes no difference to the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.dataflow import saved_by_call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases, cut_list
from lingvo_pipe.pipeline.loops.packing import Handles, PackOfPacks
from lingvo_pipe.pipeline.loops.stage_call import StageCall, StashSlot, Values
from lingvo_pipe.pipeline.tracing.trace import Surroundings


class Stage:
    """The calls of one stage, one after another.

    Attributes:
        calls: in order.
        recomputed: for each call whether its residuals are made anew rather than kept,
            where the schedule recomputes at all.
        weights, sums, gradients, residuals, weight_residuals: how those of all calls
            are packed.
        kept: how the stashes are packed of residuals that are kept although the
            schedule recomputes.
    """

    def __init__(self, calls: Sequence[StageCall], recomputed: Sequence[bool]):
        """Initialises the stage.

        Args:
            calls: in order.
            recomputed: see above.
        """
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
        self.kept = PackOfPacks(
            [0 if r else n for r, n in zip(recomputed, residuals, strict=True)]
        )

    def pack_weights(self, weights: Sequence[Sequence[tf.Tensor]]) -> Handles:
        """Packed weights; given are those of each call."""
        packed = [
            call.functions.pack_weights(*own)
            for call, own in zip(self.calls, weights, strict=True)
        ]
        return self.weights.pack(packed)

    def zero_sums(self) -> Handles:
        """Packed totals of sums, of nothing yet."""
        return self.sums.pack(self.of_calls(lambda f: f.zero_sums()))

    def zero_gradients(self) -> Handles:
        """Packed totals of gradients, of nothing yet."""
        return self.gradients.pack(self.of_calls(lambda f: f.zero_gradients()))

    def unpack_sums(self, sums: Handles) -> list[list[tf.Tensor]]:
        """For each call the totals of its sums."""
        calls = zip(self.calls, self.sums.unpack(sums), strict=True)
        return [call.functions.unpack_sums(*pack) for call, pack in calls]

    def of_calls(self, make: Callable[[PackedPhases], Handles]) -> list[Handles]:
        """What all calls begin with; those that share functions share it too."""
        functions = [call.functions for call in self.calls]
        made = {f: make(f) for f in dict.fromkeys(functions)}
        return [made[f] for f in functions]

    @property
    def saved(self) -> list[int]:
        """The values from which the recomputation starts."""
        calls = [
            (call.used, call.call.made, again)
            for call, again in zip(self.calls, self.recomputed, strict=True)
        ]
        return [value for values in saved_by_call(calls) for value in values]

    def forward(
        self,
        weights: Handles,
        told: Surroundings,
        values: Values,
        sums: Handles,
        all_kept: StashSlot | None,
        some_kept: StashSlot | None,
    ) -> tuple[Handles, Handles]:
        """Runs the layers, adding what they make to `values`.

        Args:
            weights: packed.
            told: what they are told.
            values: by number.
            sums: packed totals.
            all_kept: where residuals are kept, if those of all calls are.
            some_kept: where they are kept, if those that are not recomputed are.

        Returns:
            The new sums, and the stash.
        """
        packing = self.kept if some_kept else self.residuals
        slot = some_kept or all_kept
        stashes = packing.unpack(slot.stash) if slot else [[] for _ in self.calls]
        new_sums, new_stashes = [], []
        for call, own, total, stash, again in zip(
            self.calls,
            self.weights.unpack(weights),
            self.sums.unpack(sums),
            stashes,
            self.recomputed,
            strict=True,
        ):
            keeps = slot is not None and not (some_kept and again)
            into = StashSlot(stash, slot.slot) if slot and keeps else None
            added, stash = call.forward(own, told, values, total, into)
            new_sums.append(added)
            new_stashes.append(stash)
        return self.sums.pack(new_sums), packing.pack(new_stashes) if slot else []

    def recompute(
        self,
        weights: Handles,
        told: Surroundings,
        values: Values,
        kept: StashSlot,
        residuals: StashSlot,
    ) -> tuple[Handles, Handles]:
        """Makes the residuals of all calls, from values saved and residuals kept.

        Returns:
            Both stashes.
        """
        all_kept, all_residuals = [], []
        for call, own, have, stash, again in zip(
            self.calls,
            self.weights.unpack(weights),
            self.kept.unpack(kept.stash),
            self.residuals.unpack(residuals.stash),
            self.recomputed,
            strict=True,
        ):
            if again:
                into = StashSlot(stash, residuals.slot)
                stash = call.recompute(own, told, values, into)
            elif stash:
                both = call.functions.move(*have, kept.slot, *stash, residuals.slot)
                have, stash = cut_list(both, len(have))
            all_kept.append(have)
            all_residuals.append(stash)
        return self.kept.pack(all_kept), self.residuals.pack(all_residuals)

    def backward(
        self,
        weights: Handles,
        told: Surroundings,
        residuals: StashSlot,
        gradients: Values,
        totals: Handles,
    ) -> tuple[Handles, Handles]:
        """Runs the layers backward; `gradients` are those of values, and grow.

        Returns:
            The stash, and the new totals.
        """
        of_calls = zip(
            self.calls,
            self.weights.unpack(weights),
            self.residuals.unpack(residuals.stash),
            self.gradients.unpack(totals),
            strict=True,
        )
        results = [
            call.backward(own, told, StashSlot(stash, residuals.slot), gradients, total)
            for call, own, stash, total in reversed(list(of_calls))
        ]
        stashes, new_totals = zip(*reversed(results), strict=True)
        return self.residuals.pack(stashes), self.gradients.pack(new_totals)

    def input_backward(
        self,
        weights: Handles,
        told: Surroundings,
        residuals: StashSlot,
        gradients: Values,
        later: StashSlot,
    ) -> tuple[Handles, Handles]:
        """As `backward`, but keeps what `weight_backward` needs; returns stashes."""
        of_calls = zip(
            self.calls,
            self.weights.unpack(weights),
            self.residuals.unpack(residuals.stash),
            self.weight_residuals.unpack(later.stash),
            strict=True,
        )
        results = [
            call.input_backward(
                own,
                told,
                StashSlot(stash, residuals.slot),
                gradients,
                StashSlot(laters, later.slot),
            )
            for call, own, stash, laters in reversed(list(of_calls))
        ]
        stashes, all_later = zip(*reversed(results), strict=True)
        return self.residuals.pack(stashes), self.weight_residuals.pack(all_later)

    def weight_backward(
        self, weights: Handles, told: Surroundings, later: StashSlot, totals: Handles
    ) -> tuple[Handles, Handles]:
        """The stash, and the totals with the gradients of all weights."""
        results = [
            call.weight_backward(own, told, StashSlot(stash, later.slot), total)
            for call, own, stash, total in zip(
                self.calls,
                self.weights.unpack(weights),
                self.weight_residuals.unpack(later.stash),
                self.gradients.unpack(totals),
                strict=True,
            )
        ]
        stashes, new_totals = zip(*results, strict=True)
        return self.weight_residuals.pack(stashes), self.gradients.pack(new_totals)
