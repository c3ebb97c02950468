"""The global norm of gradients, and clipping by it or by each gradient's own norm.

    norm = √(Σ over variables of Σ g²);   g ← g · value / max(norm, value)

(Pascanu et al. 2013, algorithm 1, over all variables at once.)

Each variable's squares are summed on its device. The CPU adds these sums in the order
of the variables, so the result does not depend on the placement of variables.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates, by_device


def global_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> tf.Tensor:
    """Returns the norm of all gradients together, float64 `[]`, on the CPU.

    The norm is finite if and only if each gradient's sum of squares is finite in
    float32, or in the gradient's dtype if that is wider.

    `gradients` has one gradient per variable, on the variable's device, in the model's
    order.
    """
    sums = square_sums(gradients, variables)
    with tf.device("/CPU:0"):
        return tf.sqrt(tf.add_n(sums))


def square_sums(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Returns each gradient's sum of squares, float64 `[]`, on its variable's device.

    One function call computes all sums on a device. In a graph, devices whose gradients
    have the same shapes and dtypes call the same function.
    """
    sum_by_index: dict[int, tf.Tensor] = {}
    shared = SharedUpdates()
    for device, indices in by_device(variables).items():
        with tf.device(device):
            sums = shared.call(
                "sums",
                lambda tensors, _: list(map(square_sum, tensors)),
                [gradients[i] for i in indices],
                [],
            )
        sum_by_index.update(zip(indices, sums, strict=True))
    return [sum_by_index[i] for i in range(len(sum_by_index))]


def square_sum(gradient: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a gradient's squares, float64 `[]`."""
    wide = tf.cast(gradient, wide_dtype(gradient.dtype))
    return 2 * tf.cast(tf.nn.l2_loss(wide), tf.float64)


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], max_norm: float
) -> list[tf.Tensor]:
    """Scales gradients down so that their global norm is at most `max_norm`.

    If the norm is not finite, all gradients become NaN. The first two arguments are as
    in `global_norm`. `max_norm` is positive.
    """
    with tf.device("/CPU:0"):
        scale = _scale(global_norm(gradients, variables), max_norm)
    return on_devices(lambda x: x * tf.cast(scale, x.dtype), gradients, variables)


def clip_by_each_norm(
    gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], max_norm: float
) -> list[tf.Tensor]:
    """Scales each gradient down so that its own norm is at most `max_norm`."""

    def clipped(gradient: tf.Tensor) -> tf.Tensor:
        scale = _scale(tf.sqrt(square_sum(gradient)), max_norm)
        return gradient * tf.cast(scale, gradient.dtype)

    return on_devices(clipped, gradients, variables)


def on_devices(
    function: Callable[[tf.Tensor], tf.Tensor],
    gradients: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
) -> list[tf.Tensor]:
    """Applies `function` to each gradient, on the device of the gradient's variable."""
    results = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            results.append(function(gradient))
    return results


def _scale(norm: tf.Tensor, max_norm: float) -> tf.Tensor:
    # The subtrahend is 0 for a finite norm, else NaN.
    return max_norm / tf.maximum(norm, max_norm) - (norm - norm)
