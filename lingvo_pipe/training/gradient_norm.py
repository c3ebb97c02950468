"""The norm of gradients, by which they are clipped and steps are judged.

    norm = √(Σ over variables of Σ g²)

Each variable's squares are summed on its device, and these sums on the CPU in the order
of the variables, so that the result does not depend on which device holds what.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def global_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> tf.Tensor:
    """The norm of all gradients together, `[]` float64, on the CPU.

    It is finite if and only if all gradients are, and each one's sum of squares too: in
    float32, or in its own dtype where that is wider.

    Args:
        gradients: one for each variable, in the order of the model.
        variables: on whose devices the gradients are.
    """
    sums = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            sums.append(square_sum(gradient))
    with tf.device("/CPU:0"):
        return tf.sqrt(tf.add_n(sums))


def square_sum(gradient: tf.Tensor) -> tf.Tensor:
    """The sum of squares, `[]` float64."""
    wide = gradient.dtype if gradient.dtype.size > 2 else tf.float32
    return 2 * tf.cast(tf.nn.l2_loss(tf.cast(gradient, wide)), tf.float64)
