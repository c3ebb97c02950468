"""Losses, gradients and variables that are not finite."""

import itertools
from collections.abc import Mapping

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.param_rules import count


def define_skipping_params(p: Params) -> None:
    """Adds the params of skipped steps to a task's `train` params."""
    p.Define(
        "max_skipped_steps",
        0,
        "Maximum number of consecutive steps that are skipped, without an update, "
        "because the loss or a gradient is not finite. One more ends the run.",
    )


SKIPPING_RULES = {
    "max_skipped_steps": count(
        0, "With 0 the first step that is not finite ends the run."
    )
}


class SkippedSteps:
    """The number of consecutive skipped steps, saved in checkpoints."""

    def __init__(self, p: Params):
        self._max = p.max_skipped_steps
        with tf.device("/CPU:0"):
            self._num = tf.Variable(0, dtype=tf.int64, trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variables that checkpoints must hold, by name."""
        return {"skipped_steps": self._num}

    def add_finite(self) -> None:
        """Counts a finite step, which ends a sequence of skipped ones."""
        self._num.assign(0)

    def may_skip(self) -> bool:
        """Counts a step that is not finite, and returns whether the run may skip it."""
        self._num.assign_add(1)
        return int(self._num) <= self._max


class NonFiniteVariables:
    """A check for variables with elements that are not finite."""

    def __init__(self, variables: Mapping[str, tf.Variable]):
        self._variables = {k: v for k, v in variables.items() if v.dtype.is_floating}
        self._function = tf.function(self._are_finite, autograph=False)

    def names(self) -> list[str]:
        """Returns the names of the variables that are not finite now."""
        if not self._variables:
            return []
        wrong = ~self._function().numpy()
        return list(itertools.compress(self._variables, wrong))

    def _are_finite(self) -> tf.Tensor:
        flags = []
        for variable in self._variables.values():
            with tf.device(variable.device):
                flags.append(tf.reduce_all(tf.math.is_finite(variable.value())))
        with tf.device("/CPU:0"):
            return tf.stack(flags)
