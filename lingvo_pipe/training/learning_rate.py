"""Learning-rate schedules that Keras lacks: a warm-up and a floor around others, 1/√t.

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

The Transformer's rate (1706.03762, section 5.3) rises linearly for w steps, to
(D·w)^-0.5, and falls with 1/√t from there. With that as the learning rate it is

    ScheduleParams(
        "LinearWarmup",
        warmup_steps=w,
        schedule=ScheduleParams("InverseSquareRoot", constant_steps=w),
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


class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """initial_learning_rate·√(c / max(t, c)) for t = 1, 2, ..., c being constant_steps.

    GShard's translations (2006.16668) are trained by Adafactor with 1/√max(t, 10⁴): an
    initial rate of 0.01 and 10⁴ constant steps.
    """

    def __init__(self, initial_learning_rate: float, constant_steps: float):
        """Initialises the schedule.

        Args:
            initial_learning_rate: of the first steps.
            constant_steps: how many of them; positive.

        Raises:
            ValueError: if constant_steps is not positive.
        """
        if not _is_number(constant_steps) or not 0 < constant_steps < math.inf:
            raise ValueError(
                "constant_steps must be positive, for the rate is the initial one "
                f"times √(constant_steps / t); got {constant_steps!r}. 1 lets it fall "
                "from the first step."
            )
        self._rate = initial_learning_rate
        self._constant_steps = constant_steps

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of a step, [] float32; the first step is 0."""
        steps = tf.cast(self._constant_steps, tf.float32)
        number = tf.cast(step, tf.float32) + 1.0
        return self._rate * tf.sqrt(steps / tf.maximum(number, steps))

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "initial_learning_rate": self._rate,
            "constant_steps": self._constant_steps,
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
