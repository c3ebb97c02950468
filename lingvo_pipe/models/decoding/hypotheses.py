"""Finished sequences of each example, the best first.

Shapes: B examples, N sequences kept of each, T tokens at most.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Hypotheses(NamedTuple):
    """Sequences that ended. Where there are fewer than N, the last are empty.

    Attributes:
        ids: `[B, N, T]` int32, the end token included, 0 behind it.
        lengths: `[B, N]` int32, the end token counted; 0 for an empty one.
        log_probs: `[B, N]`, of all tokens together, in nats; -inf for an empty one.
        scores: `[B, N]`, with the length penalty; descending; -inf for an empty one.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    log_probs: tf.Tensor
    scores: tf.Tensor


def no_hypotheses(
    batch_size: int, num_kept: int, max_length: int, dtype: tf.DType
) -> Hypotheses:
    """B times N empty ones."""
    shape = [batch_size, num_kept]
    lowest = tf.fill(shape, tf.constant(float("-inf"), dtype))
    return Hypotheses(
        ids=tf.zeros([*shape, max_length], tf.int32),
        lengths=tf.zeros(shape, tf.int32),
        log_probs=lowest,
        scores=lowest,
    )


def best_of(kept: Hypotheses, new: Hypotheses) -> Hypotheses:
    """The N best of both; of equal ones those kept before, and then the first."""
    both = [tf.concat(pair, 1) for pair in zip(kept, new, strict=True)]
    scores, places = tf.math.top_k(both[-1], kept.scores.shape[1])
    ids, lengths, log_probs = (
        tf.gather(values, places, axis=1, batch_dims=1) for values in both[:-1]
    )
    return Hypotheses(ids, lengths, log_probs, scores)
