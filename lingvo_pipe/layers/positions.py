"""Sinusoidal positions (Vaswani et al., 1706.03762, section 3.5).

Shapes: B examples, D channels.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

_LONGEST = 10_000.0  # the longest wave is 2π of these


def sinusoidal_positions(
    positions: tf.Tensor, dim: int, dtype: tf.DType = tf.float32
) -> tf.Tensor:
    """Channel 2i is sin(position / 10000^(2i/D)), channel 2i+1 its cosine.

    Args:
        positions: `[B, ...]`, places in the sentence from 0; in a packed example each
            sentence has its own.
        dim: D.
        dtype: of the result; narrow ones are rounded at the end.

    Returns:
        `[B, ..., D]`.

    Raises:
        ValueError: if D is odd.
    """
    if dim % 2:
        raise ValueError(
            f"Sinusoidal positions need an even number of channels; got {dim}."
        )
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    rates = _LONGEST ** (-2.0 * np.arange(dim // 2) / dim)
    angles = tf.cast(positions, wide)[..., tf.newaxis] * tf.constant(rates, wide)
    waves = tf.stack([tf.sin(angles), tf.cos(angles)], -1)
    return tf.cast(tf.reshape(waves, [-1, *positions.shape[1:], dim]), dtype)


def sinusoidal_flops(shape: tuple, dim: int) -> int:
    """What `sinusoidal_positions` of `shape` cost: a sine or cosine an element."""
    return math.prod(shape) * dim
