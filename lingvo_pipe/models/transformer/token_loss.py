"""The loss of each token of a target, and its mean over those that count.

Shapes: B examples, T tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.layers.softmax_cross_entropy import cross_entropies
from lingvo_pipe.nested_map import NestedMap


def token_metrics(
    logits: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0.0,
) -> NestedMap:
    """Means over all tokens by weight, in float32 or wider.

    Args:
        logits: `[B, T, V]`.
        labels: `[B, T]` integers in [0, V), also where the weight is 0.
        weights: `[B, T]`, 0 for padding, else usually 1.
        label_smoothing: share of the target spread evenly over the vocabulary.

    Returns:
        NestedMap of pairs (mean, total weight): `loss`, with smoothed labels;
        `log_pplx`, the cross entropy without smoothing, in nats; `accuracy`, how often
        the label has the largest logit. The mean over no tokens is 0.
    """
    log_pplx = cross_entropies(logits, labels)
    logits = tf.cast(logits, log_pplx.dtype)
    weights = tf.cast(weights, log_pplx.dtype)
    losses = log_pplx
    if label_smoothing:
        # The cross entropies of label and mean differ by their logits alone.
        of_label = tf.gather(logits, labels, batch_dims=2)
        losses += label_smoothing * (of_label - tf.reduce_mean(logits, -1))
    correct = tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64))
    total = tf.reduce_sum(weights)

    def mean(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.math.divide_no_nan(tf.reduce_sum(values * weights), total), total

    return NestedMap(
        loss=mean(losses),
        log_pplx=mean(log_pplx),
        accuracy=mean(tf.cast(correct, log_pplx.dtype)),
    )
