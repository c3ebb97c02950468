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
    return [
        tf.TensorSpec([1, *w.shape], w.dtype if w.dtype.size > 2 else tf.float32)
        for w in weights
    ]


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
        total: `[1, ...]`.
        weight: that of the mini-batch, by which it is divided; None: it is not.
        dtype: of the weight.
    """
    value = tf.squeeze(total, [0])
    if weight is not None:
        value = tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))
    return tf.cast(value, dtype)
