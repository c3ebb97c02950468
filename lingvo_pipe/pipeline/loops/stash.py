"""Packs, which hold many tensors as one, and stashes, which hold them in slots.

A stage of many layers has thousands of weights, accumulators and residuals. Passed one
by one, each would appear in every function between the step and the layer that uses it.
So they travel as a pack, one optional value that holds them all, and are unpacked where
they are used. A pack may hold packs: a stage's pack has one for each of its layers.

A stash holds the residuals of a micro-batch from one operation to a later one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import pack_present, present

# A pack: one tensor, or none if there is nothing to hold.
Pack = list[tf.Tensor]


class Packing:
    """A packing of tensors of fixed specs. `spec` is the spec of the pack."""

    def __init__(self, specs: Sequence[tf.TensorSpec]):
        self._specs = list(specs)
        self.spec = [tf.TensorSpec([], tf.variant)] if specs else []

    def zeros(self) -> Pack:
        return self.pack([tf.zeros(x.shape, x.dtype) for x in self._specs])

    def pack(self, tensors: Sequence[tf.Tensor]) -> Pack:
        if not self._specs:
            return []
        return [tf.raw_ops.OptionalFromValue(components=list(tensors))]

    def unpack(self, pack: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if not self._specs:
            return []
        (packed,) = pack
        return tf.raw_ops.OptionalGetValue(
            optional=packed,
            output_types=[spec.dtype for spec in self._specs],
            output_shapes=[spec.shape for spec in self._specs],
        )


class StashSlot(NamedTuple):
    """A packed stash, and the number of one of its slots, `[]` int32."""

    stash: Pack
    slot: tf.Tensor


class PackOfPacks:
    """A packing of packs into one pack. `packs` has the spec of each pack."""

    def __init__(self, packs: Sequence[list[tf.TensorSpec]]):
        self._packs = packs
        self._all = Packing(present(packs))
        self.spec = self._all.spec

    def pack(self, packs: Sequence[Pack]) -> Pack:
        return self._all.pack(present(packs))

    def unpack(self, pack: Pack | StashSlot) -> list[Any]:
        """Returns the packs in a pack.

        For a slot of a pack of stashes, returns the same slot of each stash.
        """
        if isinstance(pack, StashSlot):
            return [StashSlot(stash, pack.slot) for stash in self.unpack(pack.stash)]
        return pack_present(self._packs, self._all.unpack(pack))


class Stash:
    """Numbered slots, each for a list of tensors of fixed specs.

    The contents are loop state, so methods take the old contents and return the new
    ones. Contents are one TensorList for each tensor of a slot. The number of slots is
    no part of the graph.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]):
        self.specs = list(specs)

    def empty(self, num_slots: tf.Tensor) -> list[tf.Tensor]:
        """Returns the contents of a stash with `num_slots` ([] int32) empty slots."""
        return [
            tf.raw_ops.TensorListReserve(
                element_shape=tf.constant(-1),
                num_elements=num_slots,
                element_dtype=spec.dtype,
            )
            for spec in self.specs
        ]

    def put(
        self, contents: list[tf.Tensor], slot: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the contents with `tensors` in a slot."""
        return [
            tf.raw_ops.TensorListSetItem(input_handle=handle, index=slot, item=tensor)
            for handle, tensor in zip(contents, tensors, strict=True)
        ]

    def take(
        self, contents: list[tf.Tensor], slot: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the tensors in a slot, and the contents without them."""
        taken = [
            tf.ensure_shape(
                tf.raw_ops.TensorListGetItem(
                    input_handle=handle,
                    index=slot,
                    element_shape=_shape(spec),
                    element_dtype=spec.dtype,
                ),
                spec.shape,
            )
            for handle, spec in zip(contents, self.specs, strict=True)
        ]
        return taken, self.put(contents, slot, list(map(_nothing, self.specs)))

    def stacked(self, contents: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns all slots' tensors, stacked along a new first dimension."""
        return [
            tf.ensure_shape(
                tf.raw_ops.TensorListStack(
                    input_handle=handle,
                    element_shape=_shape(spec),
                    element_dtype=spec.dtype,
                ),
                [None, *spec.shape],
            )
            for handle, spec in zip(contents, self.specs, strict=True)
        ]


class PackedStash:
    """A stash whose contents are one pack. See `Stash`.

    On CPUs a slot holds one pack, which saves three operations for each residual. On
    GPUs TensorFlow has no lists of packs.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], on_cpu: bool):
        self._residuals = Packing(specs) if on_cpu else None
        self._stash = Stash(self._residuals.spec if self._residuals else specs)
        self._lists = Packing([tf.TensorSpec([], tf.variant)] * len(self._stash.specs))
        self.spec = self._lists.spec

    def empty(self, num_slots: tf.Tensor) -> Pack:
        return self._lists.pack(self._stash.empty(num_slots))

    def put(
        self, contents: Pack, slot: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> Pack:
        if self._residuals:
            tensors = self._residuals.pack(tensors)
        lists = self._lists.unpack(contents)
        return self._lists.pack(self._stash.put(lists, slot, tensors))

    def take(self, contents: Pack, slot: tf.Tensor) -> tuple[list[tf.Tensor], Pack]:
        taken, lists = self._stash.take(self._lists.unpack(contents), slot)
        if self._residuals:
            taken = self._residuals.unpack(taken)
        return taken, self._lists.pack(lists)


def _nothing(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns an empty tensor of the spec's dtype, which takes no memory."""
    if spec.dtype != tf.variant:
        return tf.zeros([0], spec.dtype)
    return tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant(-1), max_num_elements=0, element_dtype=tf.float32
    )


def _shape(spec: tf.TensorSpec) -> tf.Tensor:
    if spec.shape.rank is None:
        return tf.constant(-1)
    return tf.constant([-1 if n is None else n for n in spec.shape], tf.int32)
