"""Whether variables may be saved."""

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
