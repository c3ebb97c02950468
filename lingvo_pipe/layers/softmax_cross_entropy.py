"""Softmax cross entropy: B examples, C classes. Further dimensions may follow B."""

import tensorflow as tf

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_indices, wide_dtype
from lingvo_pipe.nested_map import NestedMap


def check_label_smoothing(label_smoothing: float) -> None:
    """Raises ValueError unless the smoothing is in [0, 1)."""
    if not (is_number(label_smoothing) and 0.0 <= label_smoothing < 1.0):
        raise UserValueError(
            path="label_smoothing", expected="a number in [0, 1)", got=label_smoothing
        )


def cross_entropies(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns the cross entropy of each example, `[B]`, in float32 or wider."""
    logits = tf.cast(logits, wide_dtype(logits.dtype))
    labels = as_indices(labels, "labels")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        spread = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
        losses += label_smoothing * (spread - losses)
    return losses


def softmax_cross_entropy(
    logits: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    label_smoothing: float = 0.0,
) -> NestedMap:
    """Returns the mean loss and the accuracy of examples, in float32 or wider.

    Args:
        logits: `[B, C]`.
        labels: `[B]` integers in [0, C), even where the weight is 0. Other labels are
            an error on the CPU and make the loss NaN on accelerators.
        weights: `[B]`, 0 for examples that do not count.
        label_smoothing: fraction of the target that is spread evenly over all classes.

    Returns:
        NestedMap with `loss` and `accuracy`, each a pair (weighted mean, total weight)
            of scalars. The mean over no examples is 0.
    """
    dtype = wide_dtype(logits.dtype)
    logits, weights = tf.cast(logits, dtype), tf.cast(weights, dtype)
    losses = cross_entropies(logits, labels, label_smoothing)
    correct = tf.equal(tf.argmax(logits, -1), tf.cast(labels, tf.int64))
    return weighted_means(weights, loss=losses, accuracy=tf.cast(correct, dtype))


def weighted_means(weights: tf.Tensor, **values: tf.Tensor) -> NestedMap:
    """Returns pairs (mean, total weight) by name. If the total is 0, so is the mean."""
    total = tf.reduce_sum(weights)
    return NestedMap(
        {
            name: (tf.math.divide_no_nan(tf.reduce_sum(x * weights), total), total)
            for name, x in values.items()
        }
    )
