"""Rows of a micro-batch's tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


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
