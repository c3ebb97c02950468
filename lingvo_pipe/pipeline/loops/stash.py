"""Where a stage keeps tensors of a micro-batch from one operation to a later one."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.loops.packing import Handles, Packing


class Stash:
    """Numbered slots, each for a list of tensors of fixed specs.

    The contents are loop state, so they are passed in and out: one TensorList for each
    tensor of a slot. The number of slots is data, not structure.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]):
        self._specs = list(specs)

    def empty(self, num_slots: tf.Tensor) -> list[tf.Tensor]:
        """Contents with nothing in any of `[]` int32 slots."""
        return [
            tf.raw_ops.TensorListReserve(
                element_shape=tf.constant(-1),
                num_elements=num_slots,
                element_dtype=spec.dtype,
            )
            for spec in self._specs
        ]

    def put(
        self, contents: list[tf.Tensor], slot: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Contents with `tensors` in a slot."""
        return [
            tf.raw_ops.TensorListSetItem(input_handle=handle, index=slot, item=tensor)
            for handle, tensor in zip(contents, tensors, strict=True)
        ]

    def take(
        self, contents: list[tf.Tensor], slot: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The tensors in a slot, and contents without them."""
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
            for handle, spec in zip(contents, self._specs, strict=True)
        ]
        return taken, self.put(contents, slot, list(map(_nothing, self._specs)))

    def stacked(self, contents: list[tf.Tensor]) -> list[tf.Tensor]:
        """All slots' tensors, stacked along a new first dimension."""
        return [
            tf.ensure_shape(
                tf.raw_ops.TensorListStack(
                    input_handle=handle,
                    element_shape=_shape(spec),
                    element_dtype=spec.dtype,
                ),
                [None, *spec.shape],
            )
            for handle, spec in zip(contents, self._specs, strict=True)
        ]


class PackedStash:
    """A stash whose contents are packed."""

    def __init__(self, specs: Sequence[tf.TensorSpec]):
        self._stash = Stash(specs)
        self._packing = Packing([tf.TensorSpec([], tf.variant)] * len(specs))

    @property
    def handles(self) -> list[tf.TensorSpec]:
        """Specs of the packed contents."""
        return self._packing.handles

    def empty(self, num_slots: tf.Tensor) -> Handles:
        """Contents with nothing in any of `[]` int32 slots."""
        return self._packing.pack(self._stash.empty(num_slots))

    def put(
        self, contents: Handles, slot: tf.Tensor, tensors: Sequence[tf.Tensor]
    ) -> Handles:
        """Contents with `tensors` in a slot."""
        unpacked = self._packing.unpack(contents)
        return self._packing.pack(self._stash.put(unpacked, slot, tensors))

    def take(
        self, contents: Handles, slot: tf.Tensor
    ) -> tuple[list[tf.Tensor], Handles]:
        """The tensors in a slot, and contents without them."""
        taken, rest = self._stash.take(self._packing.unpack(contents), slot)
        return taken, self._packing.pack(rest)


def _nothing(spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor that takes no memory."""
    if spec.dtype != tf.variant:
        return tf.zeros([0], spec.dtype)
    return tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant(-1), max_num_elements=0, element_dtype=tf.float32
    )


def _shape(spec: tf.TensorSpec) -> tf.Tensor:
    """The shape, -1 for what is not known."""
    if spec.shape.rank is None:
        return tf.constant(-1)
    sizes = [-1 if n is None else n for n in spec.shape]
    return tf.constant(sizes, tf.int32)
