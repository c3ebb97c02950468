"""The part of a stage's stash that is offloaded, with each buffer once.

A layer's residual may be another layer's residual too, or a view of it. Only one of
them is copied. What comes from the mini-batch is not copied at all.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.loops.out_of_line import shared_by_kind
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stash import Pack, Packing, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import Values, viewed_values
from lingvo_pipe.pipeline.schedules.slots import StashKind


class OffloadedPart:
    """The residuals of offloaded layers. `packing` packs the ones that are copied."""

    def __init__(self, stage: Stage, inputs: Collection[int]):
        """Initializes the part. The values `inputs` belong to the mini-batch."""
        layers = list(itertools.compress(stage.layers, stage.offloaded))
        viewed = viewed_values(stage.layers)
        specs: dict[Any, tf.TensorSpec] = {}
        self._keys: list[list[Any]] = []
        self._specs = [layer.functions.phases.residuals for layer in layers]
        for number, layer in enumerate(layers):
            phases = layer.functions.phases
            inner = [(number, i) for i in range(len(phases.residual_buffers.own))]
            values = [layer.values.args[i] for i in phases.residual_buffers.args]
            values += [layer.values.made[i] for i in phases.residual_buffers.made]
            buffers = [*inner, *(viewed.get(value, value) for value in values)]
            # A view of unknown shape could not be restored.
            keys = [
                buffers[i]
                if spec.shape.is_fully_defined()
                else (number, position, spec)
                for position, (i, spec) in enumerate(
                    zip(phases.residual_buffers.indices, phases.residuals, strict=True)
                )
            ]
            self._keys.append(keys)
            for key, spec in zip(keys, phases.residuals, strict=True):
                specs.setdefault(key, spec)
        self._copied = [key for key in specs if key not in inputs]
        self.packing = Packing([specs[key] for key in self._copied])

    def distinct(self, residuals: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns the residuals to copy, of `residuals` by layer."""
        buffers: dict[Any, tf.Tensor] = {}
        for keys, of_layer in zip(self._keys, residuals, strict=True):
            for key, x in zip(keys, of_layer, strict=True):
                buffers.setdefault(key, x)
        return [buffers[key] for key in self._copied]

    def by_layer(
        self, copied: Sequence[tf.Tensor], inputs: Values
    ) -> list[list[tf.Tensor]]:
        """Returns each layer's residuals, from copies and from the mini-batch."""
        buffers: dict[Any, tf.Tensor] = dict(inputs)
        buffers.update(zip(self._copied, copied, strict=True))
        return [
            [_view(buffers[key], spec) for key, spec in zip(keys, specs, strict=True)]
            for keys, specs in zip(self._keys, self._specs, strict=True)
        ]


@shared_by_kind
def take_offloaded(
    stage: Stage, stashed: StashSlot, inputs: Values, *, will_recompute: bool = False
) -> tuple[Pack, Pack]:
    """Takes the offloaded layers' residuals from a slot. Returns (pack, new stash).

    `inputs` are values of the mini-batch. `Stage.forward` has filled the slot.
    """
    kind = StashKind.FOR_RECOMPUTE if will_recompute else StashKind.RESIDUALS
    packing, taken, stashes = stage.stashes[kind], [], []
    for layer, slot, is_offloaded in zip(
        stage.layers, packing.unpack(stashed), stage.offloaded, strict=True
    ):
        stash = slot.stash
        if is_offloaded:
            residuals, stash = layer.functions.take(slot)
            taken.append(residuals)
        stashes.append(stash)
    part = OffloadedPart(stage, inputs)
    return part.packing.pack(part.distinct(taken)), packing.pack(stashes)


@shared_by_kind
def put_loaded(
    stage: Stage, loaded: Pack, inputs: Values, into: StashSlot
) -> tuple[Pack]:
    """Returns the stash with the residuals that `take_offloaded` took, in a slot."""
    packing, part = stage.stashes[StashKind.RESIDUALS], OffloadedPart(stage, inputs)
    by_layer = iter(part.by_layer(part.packing.unpack(loaded), inputs))
    stashes = [
        layer.functions.put(next(by_layer), slot) if is_loaded else slot.stash
        for layer, slot, is_loaded in zip(
            stage.layers, packing.unpack(into), stage.offloaded, strict=True
        )
    ]
    return (packing.pack(stashes),)


def _view(x: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    return x if x.shape == spec.shape else tf.reshape(x, spec.shape)
