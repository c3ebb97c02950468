"""A stage: consecutive layers, and the loss in the last, forward and backward.

    forward :  l0 -> l1 -> l2           each layer stashes its residuals
    backward:  l0 <- l1 <- l2           from its residuals

A layer's residuals come from the forward pass or from a recomputation; the backward
pass is the same for both.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.loops.dataflow import are_used_again, saved_by_call
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stage_call import PhaseInputs, StageCall, Values
from lingvo_pipe.pipeline.loops.stash import Handles, Packing, PackOfPacks, StashSlot
from lingvo_pipe.pipeline.schedules.slots import StashKind


class Stage:
    """The calls of one stage, one after another.

    Weights, sums, accumulators and stashes are packs of the calls' packs.

    Attributes:
        calls: the calls, in order.
        recomputed: for each call, whether its residuals are recomputed rather than
            stashed, in a schedule that recomputes.
        weights, sums, gradients: the packings.
        stashes: the packings of stashes; FOR_RECOMPUTE has residuals that are stashed
            although the schedule recomputes.
    """

    def __init__(self, calls: Sequence[StageCall], recomputed: Sequence[bool]):
        self.calls = list(calls)
        self.recomputed = list(recomputed)
        functions = [call.functions for call in calls]
        self.weights = PackOfPacks([f.weights.handles for f in functions])
        self.sums = PackOfPacks([f.sums.handles for f in functions])
        self.gradients = PackOfPacks([f.gradients.handles for f in functions])
        hashes = [call.path_hash for call in calls if call.path_hash is not None]
        self._hashes = hashes
        self._path_hashes = Packing([tf.TensorSpec([], tf.uint64)] * len(hashes))
        residuals = [f.residuals.handles for f in functions]
        stashed = zip(residuals, recomputed, strict=True)
        self.stashes = {
            StashKind.RESIDUALS: PackOfPacks(residuals),
            StashKind.WEIGHT_RESIDUALS: PackOfPacks(
                [f.weight_residuals.handles for f in functions]
            ),
            StashKind.FOR_RECOMPUTE: PackOfPacks(
                [[] if again else handles for handles, again in stashed]
            ),
        }

    def pack_weights(self, weights: Sequence[Sequence[tf.Tensor]]) -> Handles:
        packed = [
            call.functions.pack_weights(*own)
            for call, own in zip(self.calls, weights, strict=True)
        ]
        return self.weights.pack(packed)

    def pack_path_hashes(self) -> Handles:
        hashes = [tf.constant(each, tf.uint64) for each in self._hashes]
        return self._path_hashes.pack(hashes)

    def zero_sums(self) -> Handles:
        return self.sums.pack(self._of_calls(lambda f: f.zero_sums()))

    def zero_gradients(self) -> Handles:
        return self.gradients.pack(self._of_calls(lambda f: f.zero_gradients()))

    def unpack_sums(self, sums: Handles) -> list[list[tf.Tensor]]:
        calls = zip(self.calls, self.sums.unpack(sums), strict=True)
        return [call.functions.unpack_sums(*pack) for call, pack in calls]

    def empty_stash(self, kind: StashKind, num_slots: tf.Tensor) -> Handles:
        if kind is StashKind.WEIGHT_RESIDUALS:
            made = self._of_calls(lambda f: f.empty_weight_residuals(num_slots))
        else:
            made = self._of_calls(lambda f: f.empty_residuals(num_slots))
        if kind is StashKind.FOR_RECOMPUTE:
            stashed = zip(made, self.recomputed, strict=True)
            made = [[] if again else stash for stash, again in stashed]
        return self.stashes[kind].pack(made)

    @property
    def saved(self) -> list[int]:
        """The values from which the recomputation starts."""
        return list(
            itertools.chain.from_iterable(saved_by_call(self._uses_and_outputs()))
        )

    def forward(
        self,
        given: PhaseInputs,
        values: Values,
        sums: Handles,
        slot: StashSlot | None,
        will_recompute: bool,
    ) -> tuple[Handles, Handles]:
        """Adds the layers' outputs to `values`; returns the new sums and stash.

        Residuals are stashed if there is a slot; if `will_recompute`, only for the
        calls that are not recomputed.
        """
        kind = StashKind.FOR_RECOMPUTE if will_recompute else StashKind.RESIDUALS
        packing = self.stashes[kind]
        stashes = packing.unpack(slot) if slot else [None] * len(self.calls)
        results = []
        for call, own, total, stash, is_recomputed in zip(
            self.calls,
            self._inputs_of_calls(given),
            self.sums.unpack(sums),
            stashes,
            self.recomputed,
            strict=True,
        ):
            into = None if will_recompute and is_recomputed else stash
            results.append(call.forward(own, values, total, into))
        new_sums, new_stashes = zip(*results, strict=True)
        return self.sums.pack(new_sums), packing.pack(new_stashes) if slot else []

    def recompute(
        self,
        given: PhaseInputs,
        values: Values,
        stashed: StashSlot,
        residuals: StashSlot,
    ) -> tuple[Handles, Handles]:
        """Collects residuals, computed or stashed before; returns both stashes.

        A layer computes its outputs again only if a recomputed one after it uses them.
        """
        source = self.stashes[StashKind.FOR_RECOMPUTE]
        target = self.stashes[StashKind.RESIDUALS]
        results = []
        for call, own, before, into, is_recomputed, is_used in zip(
            self.calls,
            self._inputs_of_calls(given),
            source.unpack(stashed),
            target.unpack(residuals),
            self.recomputed,
            are_used_again(self._uses_and_outputs()),
            strict=True,
        ):
            result = before.stash, into.stash
            if is_recomputed:
                result = before.stash, call.recompute(own, values, into, is_used)
            elif into.stash:
                result = call.functions.move(before, into)
            results.append(result)
        all_stashed, all_residuals = zip(*results, strict=True)
        return source.pack(all_stashed), target.pack(all_residuals)

    def backward(
        self,
        given: PhaseInputs,
        residuals: StashSlot,
        gradients: Values,
        into: Handles | StashSlot,
    ) -> list[Handles]:
        """Runs the layers backward, adding gradients of values to `gradients`.

        Weights' gradients are added to accumulators; if `into` is a slot instead, it
        gets the weight residuals for `weight_backward`. Returns the new stash and the
        new contents of `into`.
        """
        packing = self.gradients
        if isinstance(into, StashSlot):
            packing = self.stashes[StashKind.WEIGHT_RESIDUALS]
        return self._run(
            lambda call, own, stash, to: call.backward(own, stash, gradients, to),
            given,
            [(self.stashes[StashKind.RESIDUALS], residuals), (packing, into)],
            step=-1,
        )

    def weight_backward(
        self, given: PhaseInputs, late: StashSlot, accumulators: Handles
    ) -> list[Handles]:
        """Returns the new late stash, and accumulators with the weights' gradients."""
        packing = self.stashes[StashKind.WEIGHT_RESIDUALS]
        packs = [(packing, late), (self.gradients, accumulators)]
        return self._run(StageCall.weight_backward, given, packs)

    def _run(
        self,
        run: Callable,
        given: PhaseInputs,
        packs: Sequence[tuple[PackOfPacks, Any]],
        step: int = 1,
    ) -> list[Handles]:
        """Returns new packs, made by calling `run(call, inputs, *packs)` for each call.

        If `step` is -1, the last call runs first.
        """
        inputs = self._inputs_of_calls(given)
        parts = [packing.unpack(pack) for packing, pack in packs]
        calls = list(zip(self.calls, inputs, *parts, strict=True))
        results = [run(*own) for own in calls[::step]]
        made = zip(*results[::step], strict=True)
        return [
            packing.pack(new) for (packing, _), new in zip(packs, made, strict=True)
        ]

    def _uses_and_outputs(self) -> list[tuple[Sequence[int], Sequence[int], bool]]:
        """Returns the calls' values, as `saved_by_call` takes them."""
        return [
            (call.used, call.call.made, is_recomputed)
            for call, is_recomputed in zip(self.calls, self.recomputed, strict=True)
        ]

    def _of_calls(self, make: Callable[[PackedPhases], Handles]) -> list[Handles]:
        """Returns initial state for each call; calls of equal functions share it."""
        functions = [call.functions for call in self.calls]
        made = {f: make(f) for f in dict.fromkeys(functions)}
        return [made[f] for f in functions]

    def _inputs_of_calls(self, given: PhaseInputs) -> list[PhaseInputs]:
        weights = self.weights.unpack(given.weights)
        hashes = self._path_hashes.unpack(given.path_hashes or [])
        hashes += [None] * (len(weights) - len(hashes))  # The loss has none.
        return [
            PhaseInputs(own, given.context._replace(path_hash=path_hash))
            for own, path_hash in zip(weights, hashes, strict=True)
        ]
