"""Learning-rate schedules that are one formula of the step x. See `schedule`."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe import py_utils
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.frozen_values import copy_value
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_choice, check_param, check_positive
from lingvo_pipe.layers.core.forward_context import ForwardContext


class BaseSchedule(BaseLayer):
    """Base class of schedules. Subclasses define Value, or `_formula(params, step)`."""

    _DEFAULTS: dict[str, Any] = {}

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        formula = (inspect.getdoc(cls) or cls.__name__).partition("\n")[0]
        for name, default in cls._DEFAULTS.items():
            p.Define(name, copy_value(default), formula)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params if params.name else params.Copy().Set(name="LRSched"))
        self._check()

    def Value(self) -> Any:
        """Returns the factor of the learning rate, `[]`, at the step in the context."""
        x = tf.cast(py_utils.GetGlobalStep(), tf.float32)
        return self._formula(self.params, x)

    def ValueAt(self, step: Any) -> tf.Tensor:
        """Returns the factor of the learning rate at `step`, float32 `[]`."""
        with ForwardContext(step=tf.cast(step, tf.int64)):
            return tf.cast(self.Value(), tf.float32)

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.Value")

    def _check(self) -> None:
        """Raises ValueError if a param is invalid."""

    def _check_length(self, name: str, length: int) -> None:
        check_param(self, name, lambda x: len(x or ()) == length, f"a list of {length}")

    def _check_boundaries(self) -> None:
        expected = "ascending steps"
        check_param(self, "boundaries", lambda x: x and list(x) == sorted(x), expected)


class Constant(BaseSchedule):
    """One value at every step."""

    _DEFAULTS = {"value": 1.0}

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return p.value


class ConstantOne(Constant):
    """1 at every step: the learning rate itself."""


class PolynomialSchedule(BaseSchedule):
    """y0 + (y1 - y0)·((x - x0)/(x1 - x0))^power: y0 up to x0, and y1 from x1 on.

    `start` is (x0, y0), and `limit` is (x1, y1). If `origin` is 'limit', the last
    factor is 1 - (1 - (x - x0)/(x1 - x0))^power instead.
    """

    _DEFAULTS = {"power": 1, "start": (0, 1.0), "limit": (1, 1.0), "origin": "start"}

    def _check(self) -> None:
        p = self.params
        check_choice(p.origin, ("start", "limit"), f"{self.path}.origin")
        check_param(self, "limit", lambda x: x[0] > p.start[0], f"x1 above {p.start}")

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        share = _share(p, x)
        if p.origin == "start":
            share = share**p.power
        else:
            share = 1.0 - (1.0 - share) ** p.power
        return p.start[1] + share * (p.limit[1] - p.start[1])


class LinearSchedule(PolynomialSchedule):
    """A line from `start` (x0, y0) to `limit` (x1, y1), constant before and after."""


class ExponentialSchedule(BaseSchedule):
    """An exponential from `start` (x0, y0) to `limit` (x1, y1), constant elsewhere."""

    _DEFAULTS = {"start": (0, 1.0), "limit": (1, 0.5)}

    def _check(self) -> None:
        x0 = self.params.start[0]
        check_param(self, "start", lambda x: x[1] > 0, "a value above 0")
        expected = f"x1 above {x0} and a value above 0"
        check_param(self, "limit", lambda x: x[0] > x0 and x[1] > 0, expected)

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return p.start[1] * (p.limit[1] / p.start[1]) ** _share(p, x)


class ContinuousSchedule(BaseSchedule):
    """initial_value·max(min, 0.5^(max(0, x - start_step)/half_life_steps))."""

    _DEFAULTS = {
        "initial_value": 1.0,
        "start_step": 400_000,
        "half_life_steps": 100_000,
        "min": 0.01,
    }

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        periods = tf.maximum(x - p.start_step, 0.0) / p.half_life_steps
        return p.initial_value * tf.maximum(0.5**periods, p.min)


class StepwiseExponentialSchedule(BaseSchedule):
    """decay^⌊x / num_steps_per_decay⌋."""

    _DEFAULTS = {"decay": 0.99, "num_steps_per_decay": 1000}

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return float(p.decay) ** tf.floor(x / p.num_steps_per_decay)


class AnnealingSchedule(BaseSchedule):
    """max(factor^x, lower_bound)."""

    _DEFAULTS = {"init": 1, "lower_bound": 0.0, "factor": 1.0}

    def _check(self) -> None:
        hint = "Multiply task.train.learning_rate instead."
        check_param(self, "init", lambda x: x == 1, "1", hint)

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return tf.maximum(float(p.factor) ** x, p.lower_bound)


class CosineSchedule(BaseSchedule):
    """Half a cosine from initial_value at 0 to final_value at total_steps."""

    _DEFAULTS = {"initial_value": 1.0, "final_value": 0.0, "total_steps": 0}

    def _check(self) -> None:
        check_positive(self, "total_steps")

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        angle = math.pi * tf.minimum(1.0, x / p.total_steps)
        change = 0.5 * (p.initial_value - p.final_value)
        return p.final_value + change * (1.0 + tf.cos(angle))


class SqrtDecay(BaseSchedule):
    """multiplier / √max(x - offset, warmup_steps)."""

    _DEFAULTS = {"warmup_steps": 10_000, "multiplier": 1.0, "offset": 0.0}

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return p.multiplier * tf.math.rsqrt(tf.maximum(x - p.offset, p.warmup_steps))


class TransformerSchedule(BaseSchedule):
    """model_dim^-0.5·min(t·w^-1.5, t^-0.5), where t = x + 1.

    See section 5.3 of arXiv:1706.03762. w is warmup_steps·worker_replicas. From
    decay_end on, the value is constant.
    """

    _DEFAULTS = {
        "warmup_steps": 4000,
        "model_dim": 512,
        "worker_replicas": 1,
        "decay_end": None,
    }

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        t = 1.0 + (x if p.decay_end is None else tf.minimum(x, float(p.decay_end)))
        rising = t * (p.warmup_steps * p.worker_replicas) ** -1.5
        return p.model_dim**-0.5 * tf.minimum(rising, tf.math.rsqrt(t))


class PiecewiseConstantSchedule(BaseSchedule):
    """values[i] from boundaries[i - 1] on, up to boundaries[i]."""

    _DEFAULTS = {"boundaries": None, "values": None}

    def _check(self) -> None:
        self._check_boundaries()
        self._check_length("values", len(self.params.boundaries) + 1)

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return piece(x, p.boundaries, p.values)


def _share(p: InstantiableParams, x: tf.Tensor) -> tf.Tensor:
    """Returns how far x is on the way from x0 to x1, as a share in [0, 1]."""
    x0, x1 = p.start[0], p.limit[0]
    return tf.clip_by_value((x - x0) / (x1 - x0), 0.0, 1.0)


def piece(x: tf.Tensor, boundaries: Sequence[float], values: Sequence[Any]) -> Any:
    """Returns values[i] if boundaries[i - 1] <= x < boundaries[i]."""
    ends = tf.constant(boundaries, tf.float32, [len(boundaries)])
    index = tf.reduce_sum(tf.cast(x >= ends, tf.int32))
    return tf.gather(tf.stack([tf.cast(x, tf.float32) for x in values]), index)
