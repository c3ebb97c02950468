"""Clipping of gradients by their global norm.

    norm = √(Σ over variables of Σ g²);   g ← g · value / max(norm, value)

(Pascanu et al. 2013, algorithm 1, over all variables at once.) Each variable's squares
are summed on its device, and these sums on the CPU in the order of the variables, so
that the result does not depend on which device holds what.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], largest: float
) -> list[tf.Tensor]:
    """Scales gradients whose global norm exceeds a value down to it.

    If the norm is not finite, all gradients become NaN: none is silently kept.

    Args:
        gradients: one for each variable, in the order of the model.
        variables: on whose devices the gradients are.
        largest: the largest norm that is left as it is; positive.
    """
    pairs = list(zip(gradients, variables, strict=True))
    sums = []
    for gradient, variable in pairs:
        with tf.device(variable.device):
            wide = gradient.dtype if gradient.dtype.size > 2 else tf.float32
            square_sum = tf.reduce_sum(tf.square(tf.cast(gradient, wide)))
            sums.append(tf.cast(square_sum, tf.float64))
    with tf.device("/CPU:0"):
        norm = tf.sqrt(tf.add_n(sums))
        # What is subtracted is 0 for a finite norm, else NaN.
        scale = largest / tf.maximum(norm, largest) - (norm - norm)
    clipped = []
    for gradient, variable in pairs:
        with tf.device(variable.device):
            clipped.append(gradient * tf.cast(scale, gradient.dtype))
    return clipped
