"""Learning-rate schedules that wrap others: linear warm-up, and a floor.

AmoebaNet's rate (tf/tpu, amoeba_net) is all three: exponential decay, which counts from
the first step, a warm-up in its place until it ends, and a floor under both:

    ScheduleParams(
        "Floor",
        fraction=1e-4,
        schedule=ScheduleParams(
            "LinearWarmup",
            warmup_steps=3 * epoch,
            schedule=ScheduleParams(
                "ExponentialDecay",
                decay_steps=2.4 * epoch,
                decay_rate=0.97,
                staircase=True,
            ),
        ),
    )
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_Schedule = Callable[[Any], Any]


class LinearWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """initial_learning_rate·step / warmup_steps, and then what another schedule says.

    The other counts all steps, those of the warm-up too.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        warmup_steps: float,
        schedule: _Schedule | None = None,
    ):
        """Initialises the schedule.

        Args:
            initial_learning_rate: what the rate rises to, from 0 at step 0.
            warmup_steps: number of steps that it takes; positive.
            schedule: what comes then; None: the initial learning rate.

        Raises:
            ValueError: if warmup_steps is not positive.
        """
        if not _is_number(warmup_steps) or not 0 < warmup_steps < math.inf:
            raise ValueError(
                f"warmup_steps must be positive; got {warmup_steps!r}. Leave out "
                "LinearWarmup for a schedule without."
            )
        self._rate = initial_learning_rate
        self._warmup_steps = warmup_steps
        self._schedule = schedule

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of a step, [] float32; the first step is 0."""
        step = keras.ops.cast(step, "float32")
        rising = self._rate * (step / self._warmup_steps)
        after = _rate_of(self._schedule, step, self._rate)
        return tf.where(step < self._warmup_steps, rising, after)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "initial_learning_rate": self._rate,
            "warmup_steps": self._warmup_steps,
            "schedule": self._schedule,
        }


class Floor(keras.optimizers.schedules.LearningRateSchedule):
    """What another schedule says, but not less than a fraction of the initial rate."""

    def __init__(
        self,
        initial_learning_rate: float,
        fraction: float,
        schedule: _Schedule | None = None,
    ):
        """Initialises the schedule.

        Args:
            initial_learning_rate: what `fraction` is a fraction of.
            fraction: from 0 to 1.
            schedule: the other; None: the initial learning rate.

        Raises:
            ValueError: if fraction does not lie in [0, 1].
        """
        if not _is_number(fraction) or not 0 <= fraction <= 1:
            raise ValueError(
                "fraction must lie in [0, 1], for it is multiplied by the initial "
                f"learning rate; got {fraction!r}."
            )
        self._rate = initial_learning_rate
        self._fraction = fraction
        self._schedule = schedule

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of a step, [] float32; the first step is 0."""
        rate = _rate_of(self._schedule, step, self._rate)
        return tf.maximum(rate, self._fraction * self._rate)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "initial_learning_rate": self._rate,
            "fraction": self._fraction,
            "schedule": self._schedule,
        }


def _rate_of(schedule: _Schedule | None, step: Any, constant: float) -> tf.Tensor:
    rate = constant if schedule is None else schedule(step)
    return tf.cast(rate, tf.float32)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
