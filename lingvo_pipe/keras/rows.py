"""Rows of a micro-batch's tensors, and their masks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.keras.private_names import set_mask


def with_mask(x: tf.Tensor, mask: Any) -> tf.Tensor:
    """Returns a tensor with a Keras mask, or as it is if the mask is None."""
    if mask is None:
        return x
    x = tf.identity(x)  # The mask is an attribute of the tensor.
    set_mask(x, mask)
    return x


def rows_in_place(x: tf.Tensor, first: Any, num_rows: int) -> tf.Tensor:
    """Returns `[num_rows, ...]`: some rows at their place, and zeros.

    Args:
        x: `[b, ...]`, the rows.
        first: [], position of the first row.
        num_rows: rows of the result.
    """
    first = tf.cast(first, tf.int32)
    after = num_rows - first - tf.shape(x)[0]
    padded = tf.pad(x, [[first, after], *([0, 0] for _ in x.shape[1:])])
    return tf.ensure_shape(padded, [num_rows, *x.shape[1:]])
