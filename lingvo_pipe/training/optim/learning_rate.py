"""Learning-rate schedules missing from Keras: warm-up, floor, inverse square root.

AmoebaNet's rate (tf/tpu, amoeba_net) is exponential decay that counts from the first
step, replaced by a warm-up at the start, with a floor under both:

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

The Transformer's rate (1706.03762, section 5.3) rises linearly for w steps to
(D·w)^-0.5, and falls with 1/√t from there. With a learning rate of (D·w)^-0.5 it is

    ScheduleParams(
        "LinearWarmup",
        warmup_steps=w,
        schedule=ScheduleParams("InverseSquareRoot", constant_steps=w),
    )

A schedule's argument `schedule` is another schedule; if None, the initial learning
rate. Steps count from 0; rates are float32 `[]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError

_Schedule = Callable[[Any], Any]


class _LearningRateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose config is its arguments."""

    def __init__(self, initial_learning_rate: float, **arguments: Any):
        self._rate = initial_learning_rate
        self._arguments = arguments

    def get_config(self) -> dict[str, Any]:
        return {"initial_learning_rate": self._rate, **self._arguments}

    def _inner_rate(self, step: Any) -> tf.Tensor:
        """Returns the rate of the argument `schedule`, if given."""
        schedule = self._arguments["schedule"]
        return tf.cast(self._rate if schedule is None else schedule(step), tf.float32)


class LinearWarmup(_LearningRateSchedule):
    """initial_learning_rate·step / warmup_steps, followed by another schedule.

    The other schedule counts all steps, including the warm-up.

    Args:
        initial_learning_rate: rate at the end of the warm-up, which starts at 0.
        warmup_steps: number of steps of the warm-up; positive.
        schedule: the other schedule.

    Raises:
        ValueError: if warmup_steps is not positive.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        warmup_steps: float,
        schedule: _Schedule | None = None,
    ):
        _check_positive("warmup_steps", warmup_steps, "Leave out LinearWarmup instead.")
        super().__init__(
            initial_learning_rate, warmup_steps=warmup_steps, schedule=schedule
        )

    def __call__(self, step: Any) -> tf.Tensor:
        step, warmup_steps = tf.cast(step, tf.float32), self._arguments["warmup_steps"]
        rising = self._rate * (step / warmup_steps)
        return tf.where(step < warmup_steps, rising, self._inner_rate(step))


class InverseSquareRoot(_LearningRateSchedule):
    """initial_learning_rate·√(c / max(t, c)) for t = 1, 2, ..., c = constant_steps.

    GShard's translations (2006.16668) use Adafactor with 1/√max(t, 10⁴): an initial
    rate of 0.01 and 10⁴ constant steps.

    Args:
        initial_learning_rate: rate of the first steps.
        constant_steps: number of these steps; positive.

    Raises:
        ValueError: if constant_steps is not positive.
    """

    def __init__(self, initial_learning_rate: float, constant_steps: float):
        hint = "With 1 the rate falls from the first step."
        _check_positive("constant_steps", constant_steps, hint)
        super().__init__(initial_learning_rate, constant_steps=constant_steps)

    def __call__(self, step: Any) -> tf.Tensor:
        steps = tf.cast(self._arguments["constant_steps"], tf.float32)
        number = tf.cast(step, tf.float32) + 1.0
        return self._rate * tf.sqrt(steps / tf.maximum(number, steps))


class Floor(_LearningRateSchedule):
    """Another schedule, bounded below by a fraction of the initial rate.

    Args:
        initial_learning_rate: rate that `fraction` multiplies.
        fraction: number from 0 to 1.
        schedule: the other schedule.

    Raises:
        ValueError: if fraction is not in [0, 1].
    """

    def __init__(
        self,
        initial_learning_rate: float,
        fraction: float,
        schedule: _Schedule | None = None,
    ):
        if not is_number(fraction) or not 0 <= fraction <= 1:
            raise UserValueError(
                path="fraction",
                expected="a number in [0, 1], which multiplies the initial rate",
                got=fraction,
            )
        super().__init__(initial_learning_rate, fraction=fraction, schedule=schedule)

    def __call__(self, step: Any) -> tf.Tensor:
        floor = self._arguments["fraction"] * self._rate
        return tf.maximum(self._inner_rate(step), floor)


def _check_positive(name: str, value: Any, hint: str) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise UserValueError(
            path=name, expected="a positive number", got=value, hint=hint
        )
