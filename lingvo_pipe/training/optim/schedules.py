"""Learning-rate schedules that are one formula; see `lingvo_pipe.schedule`.

x is the number of steps before a step: 0 in the first.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from lingvo_pipe import py_utils
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_choice, check_param
from lingvo_pipe.layers.core.forward_context import ForwardContext

_NAME = "LRSched"


class BaseSchedule(BaseLayer):
    """Base of schedules. Subclasses define Value."""

    _PARAMS: dict[str, tuple[Any, str]] = {}

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        for name, (default, description) in cls._PARAMS.items():
            p.Define(name, default, description)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params if params.name else params.Copy().Set(name=_NAME))

    def Value(self) -> tf.Tensor:
        """Returns the factor of the learning rate, `[]`, at the context's step."""
        raise NotImplementedError(f"{type(self).__name__}.Value")

    def ValueAt(self, step: Any) -> tf.Tensor:
        """Returns Value at a step, float32 `[]`."""
        with ForwardContext(step=step):
            return self.ValueNow()

    def ValueNow(self) -> tf.Tensor:
        """Returns Value, float32 `[]`."""
        return tf.cast(self.Value(), tf.float32)

    def _Step(self) -> tf.Tensor:
        """Returns x, float32 `[]`."""
        return tf.cast(py_utils.GetGlobalStep(), tf.float32)

    def _CheckLength(self, name: str, length: int) -> None:
        check_param(self, name, lambda x: len(x or ()) == length, f"a list of {length}")

    def _CheckBoundaries(self) -> None:
        expected = "ascending steps"
        check_param(self, "boundaries", lambda x: x and list(x) == sorted(x), expected)


class Constant(BaseSchedule):
    """The same value at every step."""

    _PARAMS = {
        "value": (1.0, "The value."),
    }

    def Value(self) -> tf.Tensor:
        return tf.constant(self.params.value, tf.float32)


class ConstantOne(Constant):
    """The learning rate itself."""


class PolynomialSchedule(BaseSchedule):
    """From y0 until x0 to y1 from x1 on: y0 + (y1 - y0)·((x - x0)/(x1 - x0))^power."""

    _PARAMS = {
        "power": (1, "Exponent."),
        "start": ((0, 1.0), "(x0, y0)."),
        "limit": ((1, 1.0), "(x1, y1), x1 above x0."),
        "origin": (
            "start",
            "Where the power is 0; for 'limit' 1 - ((x1 - x)/(x1 - x0))^power.",
        ),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_choice(p.origin, ("start", "limit"), f"{self.path}.origin")
        check_param(self, "limit", lambda x: x[0] > p.start[0], f"x1 above {p.start}")

    def Value(self) -> tf.Tensor:
        p = self.params
        (x0, y0), (x1, y1) = p.start, p.limit
        share = tf.clip_by_value((self._Step() - x0) / (x1 - x0), 0.0, 1.0)
        if p.origin == "start":
            share = share**p.power
        else:
            share = 1.0 - (1.0 - share) ** p.power
        return y0 + share * (y1 - y0)


class LinearSchedule(PolynomialSchedule):
    """The line from (x0, y0) to (x1, y1), constant before and after it."""


class ExponentialSchedule(BaseSchedule):
    """The exponential from (x0, y0) to (x1, y1), constant before and after it."""

    _PARAMS = {
        "start": ((0, 1.0), "(x0, y0), y0 above 0."),
        "limit": ((1, 0.5), "(x1, y1), x1 above x0, y1 above 0."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        points = {}
        for name in ("start", "limit"):
            check_param(self, name, lambda x: x[1] > 0, "a value above 0")
            x, y = self.params.Get(name)
            points[name] = (x, math.log(y))
        self.CreateChild("linear", LinearSchedule.Params().Set(**points))

    def Value(self) -> tf.Tensor:
        return tf.exp(self.linear.Value())


class ContinuousSchedule(BaseSchedule):
    """initial_value·max(min, 2^-(x - start_step)/half_life_steps) after start_step."""

    _PARAMS = {
        "initial_value": (1.0, "Value until start_step."),
        "start_step": (400_000, "Last step without decay."),
        "half_life_steps": (100_000, "Steps in which the value halves."),
        "min": (0.01, "Smallest fraction of initial_value."),
    }

    def Value(self) -> tf.Tensor:
        p = self.params
        periods = tf.maximum(self._Step() - p.start_step, 0.0) / p.half_life_steps
        return p.initial_value * tf.maximum(tf.pow(0.5, periods), p.min)


class StepwiseExponentialSchedule(BaseSchedule):
    """decay^⌊x / num_steps_per_decay⌋."""

    _PARAMS = {
        "decay": (0.99, "Factor of each decay."),
        "num_steps_per_decay": (1000, "Steps between decays."),
    }

    def Value(self) -> tf.Tensor:
        p = self.params
        return tf.pow(p.decay, tf.floor(self._Step() / p.num_steps_per_decay))


class AnnealingSchedule(BaseSchedule):
    """max(factor^x, lower_bound)."""

    _PARAMS = {
        "init": (1, "1: the value at x = 0."),
        "lower_bound": (0.0, "Smallest value."),
        "factor": (1.0, "Factor of each step."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        hint = "Multiply task.train.learning_rate instead."
        check_param(self, "init", lambda x: x == 1, "1", hint)

    def Value(self) -> tf.Tensor:
        p = self.params
        return tf.maximum(tf.pow(float(p.factor), self._Step()), p.lower_bound)


class CosineSchedule(BaseSchedule):
    """Half a cosine from initial_value at 0 to final_value at total_steps."""

    _PARAMS = {
        "initial_value": (1.0, "First value."),
        "final_value": (0.0, "Last value."),
        "total_steps": (0, "Number of steps to the last value."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_param(self, "total_steps", lambda x: x > 0, "a number above 0")

    def Value(self) -> tf.Tensor:
        p = self.params
        angle = math.pi * tf.minimum(1.0, self._Step() / p.total_steps)
        change = 0.5 * (p.initial_value - p.final_value)
        return p.final_value + change * (1.0 + tf.cos(angle))


class SqrtDecay(BaseSchedule):
    """multiplier / √max(x - offset, warmup_steps)."""

    _PARAMS = {
        "warmup_steps": (10_000, "Steps of constant value."),
        "multiplier": (1.0, "Factor."),
        "offset": (0.0, "Steps that do not count."),
    }

    def Value(self) -> tf.Tensor:
        p = self.params
        steps = tf.maximum(self._Step() - p.offset, p.warmup_steps)
        return p.multiplier * tf.math.rsqrt(steps)


class TransformerSchedule(BaseSchedule):
    """model_dim^-0.5·min(t·w^-1.5, t^-0.5) for t = x + 1 (1706.03762, section 5.3).

    w is warmup_steps·worker_replicas.
    """

    _PARAMS = {
        "warmup_steps": (4000, "Steps of linear increase."),
        "model_dim": (512, "Channels of the model."),
        "worker_replicas": (1, "Factor of warmup_steps."),
        "decay_end": (None, "Step from which the value is constant."),
    }

    def Value(self) -> tf.Tensor:
        p = self.params
        step = self._Step()
        if p.decay_end is not None:
            step = tf.minimum(step, float(p.decay_end))
        rising = (step + 1.0) * (p.warmup_steps * p.worker_replicas) ** -1.5
        return p.model_dim**-0.5 * tf.minimum(rising, tf.math.rsqrt(step + 1.0))
