"""Learning-rate schedules as classes, with the names and formulas of Lingvo's.

    p.train.learning_rate = 1.0
    p.train.lr_schedule = schedule.TransformerSchedule.Params().Set(warmup_steps=4000)

The learning rate of a step is learning_rate times the schedule's value, float32 `[]`.
A schedule of your own derives from BaseSchedule and defines Value, a function of
py_utils.GetGlobalStep(). The first step is step 0, and intervals begin with their
boundaries: Keras's PiecewiseConstantDecay changes one step later.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe import py_utils
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.checks import check_counts
from lingvo_pipe.training.optim import dev_based_schedule, schedules
from lingvo_pipe.training.optim.schedules import (
    BaseSchedule,
    Constant,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
)

# The other schedules, by names of this module too.
AnnealingSchedule = schedules.AnnealingSchedule
ConstantOne = schedules.ConstantOne
ContinuousSchedule = schedules.ContinuousSchedule
DevBasedSchedule = dev_based_schedule.DevBasedSchedule
PolynomialSchedule = schedules.PolynomialSchedule
SqrtDecay = schedules.SqrtDecay
StepwiseExponentialSchedule = schedules.StepwiseExponentialSchedule
TransformerSchedule = schedules.TransformerSchedule


class PiecewiseConstantSchedule(BaseSchedule):
    """values[i] from boundaries[i - 1] on, up to boundaries[i]."""

    _PARAMS = {
        "boundaries": (None, "Ascending first steps of all intervals but the first."),
        "values": (None, "The value of each interval."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._CheckBoundaries()
        self._CheckLength("values", len(self.params.boundaries) + 1)

    def Value(self) -> tf.Tensor:
        p = self.params
        return _Piece(self._Step(), p.boundaries, p.values)


class PiecewiseSchedule(BaseSchedule):
    """schedules[i] from boundaries[i - 1] on; each counts from its first step."""

    _PARAMS = {
        "boundaries": (None, "Ascending first steps of all schedules but the first."),
        "schedules": (None, "Params of the schedules."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._CheckBoundaries()
        self._CheckLength("schedules", len(self.params.boundaries) + 1)
        self.CreateChildren("schedules", self.params.schedules)

    def Value(self) -> tf.Tensor:
        step, boundaries = self._Step(), self.params.boundaries
        starts = [0.0, *map(float, boundaries)]
        pairs = zip(self.schedules, starts, strict=True)
        values = [x.ValueAt(tf.maximum(step - start, 0.0)) for x, start in pairs]
        return _Piece(step, boundaries, values)


class CycleSchedule(BaseSchedule):
    """schedules[i] for steps[i] steps, in turn and again; each counts all steps."""

    _PARAMS = {
        "schedules": (None, "Params of the schedules."),
        "steps": (None, "Number of steps of each schedule's turn."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self._CheckLength("steps", len(p.schedules))
        self.CreateChildren("schedules", p.schedules)

    def Value(self) -> tf.Tensor:
        *ends, period = itertools.accumulate(self.params.steps)
        step = tf.math.floormod(py_utils.GetGlobalStep(), period)
        return _Piece(step, ends, [each.ValueNow() for each in self.schedules])


class CombinedMinimumSchedule(BaseSchedule):
    """The smallest of several schedules' values."""

    _PARAMS = {"schedules": ([LinearSchedule.Params()], "Params of the schedules.")}
    _reduce = staticmethod(tf.reduce_min)

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("schedules", self.params.schedules)

    def Value(self) -> tf.Tensor:
        return self._reduce(tf.stack([each.ValueNow() for each in self.schedules]))


class CombinedProductSchedule(CombinedMinimumSchedule):
    """The product of several schedules' values, which Lingvo does not have."""

    _reduce = staticmethod(tf.reduce_prod)


class LinearRampupExponentialDecayScaledByNumSplitSchedule(CombinedMinimumSchedule):
    """A line to num_splits, a constant, an exponential down to min; never above max.

    The line ends at warmup·num_splits; the exponential runs from decay_start/num_splits
    to decay_end/num_splits.
    """

    _PARAMS = {
        "warmup": (300, "Steps of the line, times num_splits."),
        "warmup_init": (1.0, "First value of the line."),
        "decay_start": (70_000, "Step where the exponential begins, over num_splits."),
        "decay_end": (100_000, "Step where the exponential ends, over num_splits."),
        "min": (0.01, "Last value."),
        "max": (1e8, "Bound of all values."),
        "num_splits": (None, "Number of replicas; Lingvo's 0 asks its cluster."),
    }

    def __init__(self, params: InstantiableParams):
        BaseSchedule.__init__(self, params)
        check_counts(self, "num_splits")
        p = self.params
        peak = float(p.num_splits)
        warmup_end = p.warmup * peak
        decay_start = max(warmup_end + 1.0, p.decay_start / peak)
        decay_end = max(decay_start + 1.0, p.decay_end / peak)
        decay = ExponentialSchedule.Params().Set(
            start=(decay_start, peak), limit=(decay_end, p.min)
        )
        schedules = [decay, Constant.Params().Set(value=p.max)]
        if warmup_end:
            schedules.append(_Line((0.0, p.warmup_init), (warmup_end, peak)))
        self.CreateChildren("schedules", schedules)


class LinearRampupExponentialDecay(
    LinearRampupExponentialDecayScaledByNumSplitSchedule
):
    """A line from warmup_init to 1, a constant 1, and an exponential down to min."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        return super().Params().Set(num_splits=1, warmup_init=0.0)


class LinearRampupPiecewiseConstantSchedule(CombinedMinimumSchedule):
    """A line from 0 to lrs[0] at boundaries[0], then lrs[i] from boundaries[i] on.

    Boundaries are divided, and values multiplied, by num_splits.
    """

    _PARAMS = {
        "boundaries": ([], "Ascending first steps of the intervals."),
        "lrs": ([], "The value of each interval."),
        "num_splits": (None, "Number of replicas; Lingvo's 0 asks its cluster."),
    }

    def __init__(self, params: InstantiableParams):
        BaseSchedule.__init__(self, params)
        check_counts(self, "num_splits")
        self._CheckBoundaries()
        p = self.params
        self._CheckLength("lrs", len(p.boundaries))
        boundaries = [x / p.num_splits for x in p.boundaries]
        values = [x * float(p.num_splits) for x in p.lrs]
        steps = PiecewiseConstantSchedule.Params().Set(
            boundaries=boundaries, values=[1e8, *values]
        )
        line = _Line((0.0, 0.0), (boundaries[0], values[0]))
        self.CreateChildren("schedules", [line, steps])


class LinearRampupCosineSchedule(CombinedMinimumSchedule):
    """The smaller of a line to initial_value at warmup_steps and a CosineSchedule.

    Steps are divided, and values multiplied, by num_splits.
    """

    _PARAMS = {
        "warmup_init": (0, "First value of the line."),
        "warmup_steps": (0, "Steps of the line."),
        "initial_value": (1.0, "First value of the cosine."),
        "final_value": (0.0, "Last value."),
        "total_steps": (0, "Number of steps to the last value."),
        "num_splits": (1, "Number of replicas."),
    }

    def __init__(self, params: InstantiableParams):
        BaseSchedule.__init__(self, params)
        check_counts(self, "num_splits")
        p = self.params
        num, first = p.num_splits, float(p.initial_value * p.num_splits)
        self.CreateChildren(
            "schedules",
            [
                _Line((0.0, p.warmup_init * num), (p.warmup_steps // num, first)),
                CosineSchedule.Params().Set(
                    initial_value=first,
                    final_value=p.final_value * num,
                    total_steps=p.total_steps // num,
                ),
            ],
        )


def _Line(start: tuple[float, float], limit: tuple[float, float]) -> InstantiableParams:
    return LinearSchedule.Params().Set(start=start, limit=limit)


def _Piece(step: Any, boundaries: Sequence[float], values: Sequence[Any]) -> tf.Tensor:
    """Returns the value of the interval of a step, which begins with its boundary."""
    ends = tf.constant(boundaries, tf.float32, [len(boundaries)])
    index = tf.reduce_sum(tf.cast(tf.cast(step, tf.float32) >= ends, tf.int32))
    return tf.gather(tf.stack([tf.cast(x, tf.float32) for x in values]), index)
