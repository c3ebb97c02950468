"""Which keys a query may see, as tensors of booleans.

Packed examples hold several segments in a row, numbered from 1; padding is segment 0.
A query sees keys of its own segment alone, so padding is seen by padding only.

    segments  1 1 1 2 2 0        query 3 (segment 2) sees keys 3 4, causally only 3

Shapes: B examples, T queries, S keys.
"""

from __future__ import annotations

import tensorflow as tf


def same_segment(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Segments `[B, T]` and `[B, S]` -> mask `[B, 1, T, S]`, for all heads."""
    return tf.equal(queries[:, tf.newaxis, :, tf.newaxis], keys[:, None, None])


def not_later(num_tokens: int) -> tf.Tensor:
    """Mask `[T, T]`: keys up to the query's own place."""
    places = tf.range(num_tokens)
    return places[tf.newaxis] <= places[:, tf.newaxis]
