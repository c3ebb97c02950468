"""Where a stage keeps one micro-batch's tensors from one operation to a later one."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class Stash:
    """Slots for lists of tensors of fixed specs, numbered by micro-batch.

    The contents are loop state, so they are passed in and out: one TensorList for each
    tensor of a slot.
    """

    def __init__(self, num_slots: int, specs: Sequence[tf.TensorSpec]):
        self._num_slots = num_slots
        self._specs = list(specs)

    def empty(self) -> list[tf.Tensor]:
        """Contents with nothing in any slot."""
        return [
            tf.raw_ops.TensorListReserve(
                element_shape=tf.constant(spec.shape.as_list(), tf.int32),
                num_elements=self._num_slots,
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

    def get(self, contents: list[tf.Tensor], slot: tf.Tensor) -> list[tf.Tensor]:
        """The tensors in a slot."""
        return [
            tf.ensure_shape(
                tf.raw_ops.TensorListGetItem(
                    input_handle=handle,
                    index=slot,
                    element_shape=tf.constant(spec.shape.as_list(), tf.int32),
                    element_dtype=spec.dtype,
                ),
                spec.shape,
            )
            for handle, spec in zip(contents, self._specs, strict=True)
        ]

    def stacked(self, contents: list[tf.Tensor]) -> list[tf.Tensor]:
        """All slots' tensors, stacked along a new first dimension."""
        return [
            tf.ensure_shape(
                tf.raw_ops.TensorListStack(
                    input_handle=handle,
                    element_shape=tf.constant(spec.shape.as_list(), tf.int32),
                    element_dtype=spec.dtype,
                    num_elements=self._num_slots,
                ),
                [self._num_slots, *spec.shape],
            )
            for handle, spec in zip(contents, self._specs, strict=True)
        ]
