"""Whether a step may change the weights, and whether they may be saved."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


class NotFinite:
    """Finds the variables that hold something that is not finite.

    Args:
        variables: by name.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]):
        self._variables = {k: v for k, v in variables.items() if v.dtype.is_floating}
        self._function = tf.function(self._verdicts, autograph=False)

    def names(self) -> list[str]:
        """Of those at present."""
        if not self._variables:
            return []
        verdicts = self._function().numpy()
        return [
            name
            for name, good in zip(self._variables, verdicts, strict=True)
            if not good
        ]

    def _verdicts(self) -> tf.Tensor:
        verdicts = []
        for variable in self._variables.values():
            with tf.device(variable.device):
                finite = tf.math.is_finite(variable.value())
                verdicts.append(tf.reduce_all(finite))
        with tf.device("/CPU:0"):
            return tf.stack(verdicts)


def all_finite(
    loss: tf.Tensor,
    gradients: Mapping[str, tf.Tensor],
    variables: Mapping[str, tf.Variable],
) -> tf.Tensor:
    """Whether the loss and all gradients are finite, `[]` bool.

    A tensor holds something that is not finite if and only if its sum is not, but for
    finite numbers near the end of their range. Sums are made where the tensors are.

    Args:
        loss: `[]`.
        gradients: by path, of the variables or more.
        variables: by path, on whose devices the gradients are.
    """
    sums: dict[str, list[tf.Tensor]] = {}
    for path, variable in variables.items():
        with tf.device(variable.device):
            gradient = gradients[path]
            wide = gradient.dtype if gradient.dtype.size > 2 else tf.float32
            total = tf.reduce_sum(tf.cast(gradient, wide))
            sums.setdefault(variable.device, []).append(tf.cast(total, tf.float64))
    verdicts = [tf.math.is_finite(loss)]
    for device, of_device in sums.items():
        with tf.device(device):
            verdicts.append(tf.math.is_finite(tf.add_n(of_device)))
    with tf.device("/CPU:0"):
        return tf.reduce_all(tf.stack(verdicts))
