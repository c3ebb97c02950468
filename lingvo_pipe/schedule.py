"""Learning-rate schedules as classes, with Lingvo's names and formulas.

    p.train.learning_rate = 1.0
    p.train.lr_schedule = schedule.TransformerSchedule.Params().Set(warmup_steps=4000)

A step's rate is learning_rate times the schedule's value, float32 `[]`. A schedule of
your own derives from BaseSchedule and defines Value, a function of
py_utils.GetGlobalStep(). In formulas x is the step, counted from 0. The learner counts
steps that it trained, without those that task.train.max_skipped_steps skips, which
layers count. An interval includes the boundary at which it begins. Keras's
PiecewiseConstantDecay, which ScheduleParams refuses, changes one step later.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe import schedule_formulas as formulas
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.checks import check_choice, check_counts, check_param

# The schedules of one formula, which also have names in this module.
AnnealingSchedule = formulas.AnnealingSchedule
BaseSchedule = formulas.BaseSchedule
Constant = formulas.Constant
ConstantOne = formulas.ConstantOne
ContinuousSchedule = formulas.ContinuousSchedule
CosineSchedule = formulas.CosineSchedule
ExponentialSchedule = formulas.ExponentialSchedule
LinearSchedule = formulas.LinearSchedule
PiecewiseConstantSchedule = formulas.PiecewiseConstantSchedule
PolynomialSchedule = formulas.PolynomialSchedule
SqrtDecay = formulas.SqrtDecay
StepwiseExponentialSchedule = formulas.StepwiseExponentialSchedule
TransformerSchedule = formulas.TransformerSchedule


class _Composite(BaseSchedule):
    """Base class of schedules that combine others, by default `p.schedules`."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("schedules", self._parts(self.params))

    def _parts(self, p: InstantiableParams) -> list[InstantiableParams]:
        return p.schedules

    def _values(self) -> list[tf.Tensor]:
        return [tf.cast(schedule.Value(), tf.float32) for schedule in self.schedules]


class PiecewiseSchedule(_Composite):
    """A schedule that changes to the next of several schedules at each boundary.

    Step boundaries[i - 1] is the first step of schedules[i], which counts its steps
    from 0 there. The first step of schedules[0] is step 0.
    """

    _DEFAULTS = {"boundaries": None, "schedules": None}

    def _check(self) -> None:
        self._check_boundaries()
        self._check_length("schedules", len(self.params.boundaries) + 1)

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        pairs = zip(self.schedules, [0, *p.boundaries], strict=True)
        values = [
            schedule.ValueAt(tf.maximum(x - start, 0.0)) for schedule, start in pairs
        ]
        return formulas.piece(x, p.boundaries, values)


class CycleSchedule(_Composite):
    """schedules[i] for steps[i] steps, one after another, in a cycle.

    Each schedule is evaluated at the run's step, which counts all steps.
    """

    _DEFAULTS = {"schedules": None, "steps": None}

    def _check(self) -> None:
        check_param(self, "steps", lambda x: x and min(x) > 0, "numbers above 0")
        self._check_length("schedules", len(self.params.steps))

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        *ends, period = itertools.accumulate(p.steps)
        return formulas.piece(tf.math.floormod(x, float(period)), ends, self._values())


class CombinedMinimumSchedule(_Composite):
    """The smallest of several schedules' values."""

    _DEFAULTS = {"schedules": [LinearSchedule.Params()]}

    def _formula(self, p: InstantiableParams, x: tf.Tensor) -> Any:
        return tf.reduce_min(self._values())


class LinearRampupExponentialDecayScaledByNumSplitSchedule(CombinedMinimumSchedule):
    """A line up to num_splits, then a constant, then an exponential down to min.

    The value is never above max. The line ends at step warmup·num_splits. The
    exponential runs from decay_start/num_splits to decay_end/num_splits, but starts at
    least one step after the line's end and takes at least one step. num_splits is the
    number of replicas. It must be set, because Lingvo's default is 0.
    """

    _DEFAULTS = {
        "warmup": 300,
        "warmup_init": 1.0,
        "decay_start": 70_000,
        "decay_end": 100_000,
        "min": 0.01,
        "max": 1e8,
        "num_splits": None,
    }

    def _check(self) -> None:
        check_counts(self, "num_splits")

    def _parts(self, p: InstantiableParams) -> list[InstantiableParams]:
        peak, warmup_end = float(p.num_splits), float(p.warmup * p.num_splits)
        start = max(warmup_end + 1.0, p.decay_start / peak)
        end = max(start + 1.0, p.decay_end / peak)
        decay = ExponentialSchedule.Params().Set(
            start=(start, peak), limit=(end, p.min)
        )
        line = _line((0.0, p.warmup_init), (warmup_end, peak))
        return [decay, Constant.Params().Set(value=p.max)] + [line] * (warmup_end > 0)


class LinearRampupExponentialDecay(
    LinearRampupExponentialDecayScaledByNumSplitSchedule
):
    """A line from warmup_init to 1, a constant 1, and an exponential down to min."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        return super().Params().Set(num_splits=1, warmup_init=0.0)


class LinearRampupPiecewiseConstantSchedule(CombinedMinimumSchedule):
    """A line from 0 to lrs[0] at boundaries[0], then lrs[i] from boundaries[i] on.

    The value is never above lrs[0]. All lrs are multiplied by num_splits, and all
    boundaries are divided by num_splits.
    """

    _DEFAULTS = {"boundaries": [], "lrs": [], "num_splits": None}

    def _check(self) -> None:
        check_counts(self, "num_splits")
        self._check_boundaries()
        self._check_length("lrs", len(self.params.boundaries))

    def _parts(self, p: InstantiableParams) -> list[InstantiableParams]:
        boundaries = [x / p.num_splits for x in p.boundaries]
        values = [x * float(p.num_splits) for x in p.lrs]
        steps = PiecewiseConstantSchedule.Params().Set(
            boundaries=boundaries, values=[1e8, *values]
        )
        return [_line((0.0, 0.0), (boundaries[0], values[0])), steps]


class LinearRampupCosineSchedule(CombinedMinimumSchedule):
    """The smaller value of a line up to warmup_steps and a cosine to total_steps.

    All values are multiplied by num_splits, and steps are divided by num_splits.
    """

    _DEFAULTS = {
        "warmup_init": 0,
        "warmup_steps": 0,
        "initial_value": 1.0,
        "final_value": 0.0,
        "total_steps": 0,
        "num_splits": 1,
    }

    def _check(self) -> None:
        check_counts(self, "num_splits")

    def _parts(self, p: InstantiableParams) -> list[InstantiableParams]:
        num, first = p.num_splits, float(p.initial_value * p.num_splits)
        cosine = CosineSchedule.Params().Set(
            initial_value=first,
            final_value=p.final_value * num,
            total_steps=p.total_steps // num,
        )
        return [
            _line((0.0, p.warmup_init * num), (p.warmup_steps // num, first)),
            cosine,
        ]


class DevBasedSchedule(BaseSchedule):
    """A factor that falls when evaluations stop improving.

        if improved by more than tolerance:   reference = step
        if step - reference >= window:        factor = max(factor·decay, min_factor)
                                              reference = step

    The rules compare the logged values of `metric`, after each evaluation that
    task.eval.interval_steps asks for.
    """

    _DEFAULTS = {"tolerance": 0.0, "window": 10_000, "decay": 0.5, "min_factor": 0.01}

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("metric", "-loss", "Metric, as in task.eval.best_metric.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._factor = tf.Variable(1.0, trainable=False)

    def Value(self) -> tf.Tensor:
        return self._factor.read_value()

    def CheckEvaluations(
        self, interval_steps: int | None, names: Iterable[str]
    ) -> None:
        """Raises ValueError unless the run's evaluations have the metric.

        `names` are metrics. `interval_steps` is None if the run makes no evaluations.
        """
        if interval_steps is None:
            raise UserValueError(
                path="task.eval.interval_steps",
                expected="a number of steps, since DevBasedSchedule needs evaluations",
                got=None,
            )
        name = self.params.metric.removeprefix("-")
        check_choice(name, sorted(names), "task.train.lr_schedule.metric")

    def FollowEvaluations(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Sets the factor that follows from all evaluations of a run, in order."""
        p = self.params
        name = p.metric.removeprefix("-")
        sign = 1.0 if name == p.metric else -1.0
        best, reference, factor = -math.inf, 0, 1.0
        for record in records:
            step = record["step"]
            if name not in record:
                raise UserValueError(
                    path="task.train.lr_schedule.metric",
                    expected=f"a metric that the evaluation of step {step} has",
                    got=name,
                    names=record,
                    hint="Name a metric that all have, or begin a new run.",
                )
            value = sign * float(record[name])
            if value > best + p.tolerance:
                best, reference = value, step
            if step - reference >= p.window:
                factor, reference = max(factor * p.decay, p.min_factor), step
        self._factor.assign(factor)


def _line(start: tuple[float, float], limit: tuple[float, float]) -> InstantiableParams:
    return LinearSchedule.Params().Set(start=start, limit=limit)
