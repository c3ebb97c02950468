"""Steps that are skipped because their loss or a gradient is not finite."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import Params


def define_skipping_params(p: Params) -> None:
    """Defines how many are skipped among the params of a task's training."""
    p.Define(
        "max_skipped_steps",
        0,
        "How many steps in a row may be skipped because the loss or a gradient is not "
        "finite: they leave all weights as they are. One more ends the run.",
    )


class SkippedSteps:
    """Counts steps in a row that are not finite, also where a run goes on."""

    def __init__(self, p: Params):
        """Begins to count.

        Args:
            p: as of `define_skipping_params`.

        Raises:
            ValueError: if the param can't be used.
        """
        largest = p.max_skipped_steps
        if not isinstance(largest, int) or isinstance(largest, bool) or largest < 0:
            raise ValueError(
                "task.train.max_skipped_steps must be an integer of at least 0; got "
                f"{largest!r}. With 0 the first step that is not finite ends the run."
            )
        self._largest = largest
        with tf.device("/CPU:0"):
            self._num = tf.Variable(0, dtype=tf.int64, trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """What must be saved, by name."""
        return {"skipped_steps": self._num}

    def add_finite(self) -> None:
        """Takes note of a step that is finite."""
        self._num.assign(0)

    def may_skip(self) -> bool:
        """Takes note of one that is not; whether it may be skipped."""
        self._num.assign_add(1)
        return int(self._num) <= self._largest
