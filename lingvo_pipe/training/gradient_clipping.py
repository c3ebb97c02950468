"""Clipping of gradients by their global norm, or each by its own.

    norm = √(Σ over variables of Σ g²);   g ← g · value / max(norm, value)

(Pascanu et al. 2013, algorithm 1, over all variables at once.)
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.training.gradient_norm import global_norm, square_sum


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
    with tf.device("/CPU:0"):
        scale = _scale(global_norm(gradients, variables), largest)
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            clipped.append(gradient * tf.cast(scale, gradient.dtype))
    return clipped


def clip_by_each_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], largest: float
) -> list[tf.Tensor]:
    """Scales each gradient whose own norm exceeds a value down to it.

    Args:
        gradients: one for each variable; one whose norm is not finite becomes NaN.
        variables: on whose devices the gradients are.
        largest: the largest norm that is left as it is; positive.
    """
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            scale = _scale(tf.sqrt(square_sum(gradient)), largest)
            clipped.append(gradient * tf.cast(scale, gradient.dtype))
    return clipped


def _scale(norm: tf.Tensor, largest: float) -> tf.Tensor:
    # What is subtracted is 0 for a finite norm, else NaN.
    return largest / tf.maximum(norm, largest) - (norm - norm)
