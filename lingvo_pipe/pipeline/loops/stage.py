"""A stage: consecutive layers, run forward and backward.

    forward :  l0 -> l1 -> l2           each layer stashes its residuals
    backward:  l0 <- l1 <- l2           from its residuals

The last layer of the last stage is the loss. A layer's residuals come from the forward
pass or from a recomputation. The backward pass is the same for both.

Identical stages differ only in the numbers of their values, and in the hashes of their
layers' paths. Each call maps the numbers, and the hashes are arguments. So identical
stages share the functions of their operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.pipeline.loops.dataflow import (
    are_used_again,
    recompute_inputs_by_layer,
)
from lingvo_pipe.pipeline.loops.out_of_line import shared_by_kind
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stash import Pack, Packing, PackOfPacks, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer, Values
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.tracing.trace import CallContext


class StageInputs(NamedTuple):
    """The inputs common to all operations of a stage."""

    weights: Pack  # See `Stage.pack_weights`.
    path_hashes: Pack  # Packed hashes of the layers' paths.
    context: CallContext  # The context of the layers' calls, without a path hash.


class Stage:
    """The layers of one stage, one after another.

    Weights, sums, accumulators and stashes are packs of the layers' packs. Operations
    take values or gradients in dicts by number, and return those that are `wanted`.

    Attributes:
        layers: the layers, in order. The loss counts as a layer.
        recomputed: for each layer, whether its residuals are recomputed rather than
            stashed, in a schedule that recomputes.
        offloaded: for each layer, whether its residuals are offloaded, in a schedule
            that offloads. Such a layer is not recomputed.
        stashes: the packings of stashes, by kind. FOR_RECOMPUTE has the residuals of
            layers that are not recomputed.
        numbers: the numbers of the stage's values, by position in order of use.
        positions: the positions by number. Layers of identical stages have equal ones.
        first: the first of the stages that are identical to this one.
        functions: the functions traced so far. Only `first` has any.
    """

    def __init__(
        self,
        layers: Sequence[PlacedLayer],
        recomputed: Sequence[bool],
        kinds: dict[Any, Stage] | None = None,
        offloaded: Sequence[bool] = (),
    ):
        """Initializes a stage. Identical stages that share `kinds` share functions."""
        self.layers = list(layers)
        self.recomputed = list(recomputed)
        self.offloaded = list(offloaded) or [False] * len(self.layers)
        phases = [layer.functions for layer in layers]
        self.weights = PackOfPacks([f.weights.spec for f in phases])
        self.sums = PackOfPacks([f.sums.spec for f in phases])
        self.gradients = PackOfPacks([f.gradients.spec for f in phases])
        hashes = [x.path_hash for x in layers if x.path_hash is not None]
        self._hashes = hashes
        self._path_hashes = Packing([tf.TensorSpec([], tf.uint64)] * len(hashes))
        residuals = [f.residuals.spec for f in phases]
        stashed = zip(residuals, recomputed, strict=True)
        self.stashes = {
            StashKind.RESIDUALS: PackOfPacks(residuals),
            StashKind.WEIGHT_RESIDUALS: PackOfPacks(
                [f.weight_residuals.spec for f in phases]
            ),
            StashKind.FOR_RECOMPUTE: PackOfPacks(
                [[] if again else spec for spec, again in stashed]
            ),
        }
        used = [v for x in layers for v in (*x.values.args, *x.values.made)]
        self.numbers = dict(enumerate(dict.fromkeys(used)))
        self.positions = {number: i for i, number in self.numbers.items()}
        self.functions: dict[Any, Callable] = {}
        self.first = self if kinds is None else kinds.setdefault(self._kind(), self)

    @shared_by_kind
    def forward(
        self,
        inputs: StageInputs,
        values: Values,
        sums: Pack,
        into: StashSlot | None,
        *,
        will_recompute: bool = False,
        wanted: Sequence[int] = (),
    ) -> tuple[Values, Pack, Pack]:
        """Runs the layers forward. Returns wanted values, the new sums and the stash.

        Residuals are stashed in the slot `into`, unless it is None. With
        `will_recompute`, only layers that are not recomputed stash their residuals.
        """
        kind = StashKind.FOR_RECOMPUTE if will_recompute else StashKind.RESIDUALS
        packing = self.stashes[kind]
        slots = packing.unpack(into) if into else [None] * len(self.layers)
        all_values, new_sums, stashes = dict(values), [], []
        for layer, layer_inputs, total, slot, is_recomputed in zip(
            self.layers,
            self._inputs_of_layers(inputs),
            self.sums.unpack(sums),
            slots,
            self.recomputed,
            strict=True,
        ):
            outputs, total, stash = layer.functions.forward(
                *layer_inputs,
                [all_values[v] for v in layer.used],
                total,
                None if will_recompute and is_recomputed else slot,
            )
            all_values.update(zip(layer.values.made, outputs, strict=True))
            new_sums.append(total)
            stashes.append(stash)
        return (
            {v: all_values[v] for v in wanted if v not in values},
            self.sums.pack(new_sums),
            packing.pack(stashes) if into else [],
        )

    @shared_by_kind
    def recompute(
        self,
        inputs: StageInputs,
        values: Values,
        stashed: StashSlot,
        residuals: StashSlot,
        *,
        offloads: bool = False,
    ) -> tuple[Pack, Pack]:
        """Prepares the slot `residuals` for a backward pass. Returns both stashes.

        Recomputed layers run forward again. The other layers' residuals move from the
        slot `stashed`, unless the stage `offloads` them. A recomputed layer computes
        its outputs too if a later recomputed layer uses them, or if XLA compiles the
        layer. XLA compiles a layer as a whole, so to leave out outputs would save
        nothing.
        """
        source = self.stashes[StashKind.FOR_RECOMPUTE]
        target = self.stashes[StashKind.RESIDUALS]
        all_values, stashes = dict(values), []
        for layer, layer_inputs, before, into, is_recomputed, is_away, is_used in zip(
            self.layers,
            self._inputs_of_layers(inputs),
            source.unpack(stashed),
            target.unpack(residuals),
            self.recomputed,
            self.offloaded,
            are_used_again(self._uses_and_outputs()),
            strict=True,
        ):
            source_stash, stash = before.stash, into.stash
            if is_recomputed:
                by_xla = layer.functions.phases.compilation.by_xla
                args = [all_values[v] for v in layer.used]
                outputs, stash = layer.functions.recompute(
                    *layer_inputs, args, into, makes_outputs=is_used or by_xla
                )
                all_values.update(zip(layer.values.made, outputs, strict=False))
            elif into.stash and not (offloads and is_away):
                moved, source_stash = layer.functions.take(before)
                stash = layer.functions.put(moved, into)
            stashes.append((source_stash, stash))
        all_stashed, all_residuals = zip(*stashes, strict=True)
        return source.pack(all_stashed), target.pack(all_residuals)

    @shared_by_kind
    def backward(
        self,
        inputs: StageInputs,
        residuals: StashSlot,
        gradients: Values,
        into: Pack | StashSlot,
        *,
        wanted: Sequence[int] = (),
    ) -> tuple[Values, Pack, Pack]:
        """Runs the layers backward. `gradients` are those that the stage receives.

        The weights' gradients are added to the accumulators `into`. If `into` is a slot
        instead, the slot gets the weight residuals for `weight_backward`.

        Returns the wanted gradients, the new stash, and the new contents of `into`.
        """
        delays = isinstance(into, StashSlot)
        source = self.stashes[StashKind.RESIDUALS]
        late = self.stashes[StashKind.WEIGHT_RESIDUALS]
        target = late if delays else self.gradients
        total, packs = dict(gradients), []
        layers = zip(
            self.layers,
            self._inputs_of_layers(inputs),
            source.unpack(residuals),
            target.unpack(into),
            strict=True,
        )
        for layer, layer_inputs, stash, pack in reversed(list(layers)):
            input_gradients, *new = layer.functions.backward(
                *layer_inputs, stash, layer.output_gradients(total), pack
            )
            layer.add_input_gradients(total, input_gradients)
            packs.append(new)
        stashes, contents = zip(*reversed(packs), strict=True)
        wanted_gradients = {v: total[v] for v in wanted if v in total}
        return wanted_gradients, source.pack(stashes), target.pack(contents)

    @shared_by_kind
    def weight_backward(
        self, inputs: StageInputs, residuals: StashSlot, accumulators: Pack
    ) -> tuple[Pack, Pack]:
        """Computes the weights' gradients that `backward` left out.

        Returns the new stash, and `accumulators` with the gradients added.
        """
        late = self.stashes[StashKind.WEIGHT_RESIDUALS]
        packs = [
            layer.functions.weight_backward(*layer_inputs, slot, pack)
            for layer, layer_inputs, slot, pack in zip(
                self.layers,
                self._inputs_of_layers(inputs),
                late.unpack(residuals),
                self.gradients.unpack(accumulators),
                strict=True,
            )
        ]
        stashes, totals = zip(*packs, strict=True)
        return late.pack(stashes), self.gradients.pack(totals)

    @property
    def recompute_inputs(self) -> list[int]:
        """The numbers of the values from which the stage's recomputation starts."""
        by_layer = recompute_inputs_by_layer(self._uses_and_outputs())
        return list(itertools.chain.from_iterable(by_layer))

    def pack_weights(self, weights: Sequence[Sequence[tf.Tensor]]) -> Pack:
        """Packs the flat weights of each layer."""
        packed = [
            layer.functions.pack_weights(list(layer_weights))
            for layer, layer_weights in zip(self.layers, weights, strict=True)
        ]
        return self.weights.pack(packed)

    def pack_path_hashes(self) -> Pack:
        return self._path_hashes.pack(
            [tf.constant(path_hash, tf.uint64) for path_hash in self._hashes]
        )

    def zero_sums(self) -> Pack:
        """Returns sums of 0, to which the micro-batches will add."""
        return self.sums.pack(self._of_layers(lambda f: f.sums.zeros()))

    def zero_gradients(self) -> Pack:
        """Returns gradient accumulators of 0."""
        return self.gradients.pack(self._of_layers(lambda f: f.gradients.zeros()))

    def unpack_sums(self, sums: Pack) -> list[list[tf.Tensor]]:
        """Unpacks the sums of a stage. Returns one list for each layer."""
        packs = zip(self.layers, self.sums.unpack(sums), strict=True)
        return [layer.functions.sums.unpack(pack) for layer, pack in packs]

    def empty_stash(self, kind: StashKind, num_slots: tf.Tensor) -> Pack:
        """Returns a stash of a kind, with `num_slots` empty slots."""
        if kind is StashKind.WEIGHT_RESIDUALS:
            stashes = self._of_layers(lambda f: f.weight_residuals.empty(num_slots))
        else:
            stashes = self._of_layers(lambda f: f.residuals.empty(num_slots))
        if kind is StashKind.FOR_RECOMPUTE:
            stashed = zip(stashes, self.recomputed, strict=True)
            stashes = [[] if again else stash for stash, again in stashed]
        return self.stashes[kind].pack(stashes)

    def _kind(self) -> Any:
        return tuple(
            (
                layer.functions,
                layer.path_hash is None,
                is_recomputed,
                is_offloaded,
                tuple(self.positions[v] for v in layer.values.args),
                tuple(self.positions[v] for v in layer.values.made),
            )
            for layer, is_recomputed, is_offloaded in zip(
                self.layers, self.recomputed, self.offloaded, strict=True
            )
        )

    def _uses_and_outputs(self) -> list[tuple[Sequence[int], Sequence[int], bool]]:
        return [
            (layer.used, layer.values.made, is_recomputed)
            for layer, is_recomputed in zip(self.layers, self.recomputed, strict=True)
        ]

    def _of_layers(self, make: Callable[[PackedPhases], Pack]) -> list[Pack]:
        """Calls `make` once for each kind of layer. Returns a result for each layer."""
        functions = [layer.functions for layer in self.layers]
        packs = {f: make(f) for f in dict.fromkeys(functions)}
        return [packs[f] for f in functions]

    def _inputs_of_layers(
        self, inputs: StageInputs
    ) -> list[tuple[Pack, list[tf.Tensor]]]:
        hashes = iter(self._path_hashes.unpack(inputs.path_hashes))
        of_loss = inputs.context._replace(path_hash=None, loss_scale=None)
        contexts = [
            of_loss
            if layer.path_hash is None
            else inputs.context._replace(path_hash=next(hashes))
            for layer in self.layers
        ]
        weights = self.weights.unpack(inputs.weights)
        return list(zip(weights, map(present, contexts), strict=True))


def stages_of_one(layers: Sequence[PlacedLayer]) -> list[Stage]:
    """Returns one stage for each layer. No stage recomputes."""
    kinds: dict[Any, Stage] = {}
    return [Stage([layer], [False], kinds) for layer in layers]
