"""Softmax cross entropy with label smoothing.

Shapes: B examples, C classes.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


def check_label_smoothing(label_smoothing: float) -> None:
    """Raises ValueError unless the share given to all classes lies in [0, 1)."""
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must lie in [0, 1); got {label_smoothing}.")


def softmax_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0.0,
) -> NestedMap:
    """Weighted means over the examples, in float32 or wider.

    Args:
        logits: `[B, C]`.
        labels: `[B]` integers in [0, C).
        weights: `[B]`, 0 for examples that do not count.
        label_smoothing: share of the target spread evenly over all classes.

    Returns:
        NestedMap with `loss` and `accuracy`, each a pair (mean, total weight) of
        scalars. The mean over no examples is 0.
    """
    dtype = tf.float64 if logits.dtype == tf.float64 else tf.float32
    log_probs = tf.nn.log_softmax(tf.cast(logits, dtype))
    targets = tf.one_hot(labels, logits.shape[-1], dtype=dtype)
    targets = (1.0 - label_smoothing) * targets + label_smoothing / logits.shape[-1]
    losses = -tf.reduce_sum(targets * log_probs, -1)
    correct = tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64))
    weights = tf.cast(weights, dtype)
    total = tf.reduce_sum(weights)

    def mean(values: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.reduce_sum(values * weights), total)

    return NestedMap(
        loss=(mean(losses), total), accuracy=(mean(tf.cast(correct, dtype)), total)
    )
