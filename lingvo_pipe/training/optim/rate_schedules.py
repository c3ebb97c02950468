"""Learning-rate schedules missing from Keras: warm-up, floor, inverse square root.

AmoebaNet's rate (tf/tpu, amoeba_net) is exponential decay that counts from the first
step, replaced by a warm-up at the start, with a floor under both:

    decay = ScheduleParams(
        "ExponentialDecay", decay_steps=2.4 * epoch, decay_rate=0.97, staircase=True
    )
    warmup = ScheduleParams("LinearWarmup", warmup_steps=3 * epoch, schedule=decay)
    p.lr_schedule = ScheduleParams("Floor", fraction=1e-4, schedule=warmup)

The Transformer's rate (1706.03762, section 5.3) rises linearly for w steps to
(D·w)^-0.5, and falls with 1/√t from there. With a learning rate of (D·w)^-0.5 it is

    decay = ScheduleParams("InverseSquareRoot", constant_steps=w)
    p.lr_schedule = ScheduleParams("LinearWarmup", warmup_steps=w, schedule=decay)

except that this warm-up is one step behind. `TransformerSchedule` is exact.

A schedule's argument `schedule` is another schedule, or None for the initial learning
rate. Steps count from 0. Rates are float32 `[]`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.checks import is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.schedule import BaseSchedule

_Schedule = Callable[[Any], Any]


@dataclass(eq=False)
class _LearningRateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    initial_learning_rate: float


@dataclass(eq=False)
class LinearWarmup(_LearningRateSchedule):
    """initial_learning_rate·step / warmup_steps, followed by another schedule.

    The other schedule also counts the steps of the warm-up.
    """

    warmup_steps: float
    schedule: _Schedule | None = None

    def __post_init__(self) -> None:
        _check_positive("warmup_steps", self.warmup_steps)

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = self.initial_learning_rate * (step / self.warmup_steps)
        return tf.where(step < self.warmup_steps, rising, _inner_rate(self, step))


@dataclass(eq=False)
class InverseSquareRoot(_LearningRateSchedule):
    """initial_learning_rate·√(c / max(t, c)) for t = 1, 2, ..., c = constant_steps.

    GShard's translations (2006.16668) use Adafactor with 1/√max(t, 10⁴): an initial
    rate of 0.01 and 10⁴ constant steps.
    """

    constant_steps: float

    def __post_init__(self) -> None:
        _check_positive("constant_steps", self.constant_steps)

    def __call__(self, step: Any) -> tf.Tensor:
        steps = tf.cast(self.constant_steps, tf.float32)
        number = tf.cast(step, tf.float32) + 1.0
        return self.initial_learning_rate * tf.sqrt(steps / tf.maximum(number, steps))


@dataclass(eq=False)
class Floor(_LearningRateSchedule):
    """Another schedule, bounded below by a fraction of the initial rate."""

    fraction: float
    schedule: _Schedule | None = None

    def __post_init__(self) -> None:
        if not is_number(self.fraction) or not 0 <= self.fraction <= 1:
            expected = "a number in [0, 1]"
            raise UserValueError(path="fraction", expected=expected, got=self.fraction)

    def __call__(self, step: Any) -> tf.Tensor:
        floor = self.fraction * self.initial_learning_rate
        return tf.maximum(_inner_rate(self, step), floor)


@dataclass(eq=False)
class Scaled(_LearningRateSchedule):
    """initial_learning_rate times the value of a schedule of `lingvo_pipe.schedule`."""

    schedule: BaseSchedule

    def __call__(self, step: Any) -> tf.Tensor:
        return self.initial_learning_rate * self.schedule.ValueAt(step)


def _inner_rate(outer: LinearWarmup | Floor, step: Any) -> tf.Tensor:
    schedule = outer.schedule
    rate = outer.initial_learning_rate if schedule is None else schedule(step)
    return tf.cast(rate, tf.float32)


def _check_positive(name: str, value: Any) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise UserValueError(path=name, expected="a positive number", got=value)
