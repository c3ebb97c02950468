"""Totals of gradients over the micro-batches of a step.

A total is added to in place: it is as large as its weight, and each micro-batch adds to
it. That it is owned by one loop, which hands it from one operation to the next, makes
this safe; it begins as memory of its own, never as a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def total_specs(weights: Sequence[Any]) -> list[tf.TensorSpec]:
    """Of the totals for the gradients of weights: `[1, ...]`, float32 or wider.

    In 16 bits a sum over many micro-batches would stop growing.
    """
    return [tf.TensorSpec([1, *w.shape], _wide(w.dtype)) for w in weights]


def zero_totals(specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Totals of nothing yet, as of `total_specs`."""
    return [
        tf.raw_ops.Empty(
            shape=tf.constant(spec.shape.as_list(), tf.int32),
            dtype=spec.dtype,
            init=True,
        )
        for spec in specs
    ]


def add_to_totals(
    totals: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The totals with the gradients of one more micro-batch."""
    first = tf.constant([0])
    return [
        tf.raw_ops.InplaceAdd(
            x=total, i=first, v=tf.cast(gradient, total.dtype)[tf.newaxis]
        )
        for total, gradient in zip(totals, gradients, strict=True)
    ]


def finish_total(total: tf.Tensor, weight: Any, dtype: tf.DType) -> tf.Tensor:
    """A total in its weight's shape and dtype.

    Args:
        total: `[1, ...]`; of 16 bits, where it was not made to be added to.
        weight: that of the mini-batch, by which it is divided; None: it is not.
        dtype: of the weight.
    """
    value = tf.squeeze(total, [0])
    if weight is not None:
        wide = _wide(value.dtype)
        value = tf.math.divide_no_nan(tf.cast(value, wide), tf.cast(weight, wide))
    return tf.cast(value, dtype)


def _wide(dtype: tf.DType) -> tf.DType:
    return dtype if dtype.size > 2 else tf.float32
