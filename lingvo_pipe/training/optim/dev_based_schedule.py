"""A schedule by the metrics of evaluations while training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.checks import check_choice
from lingvo_pipe.training.optim.schedules import BaseSchedule


class DevBasedSchedule(BaseSchedule):
    """A factor that falls where evaluations stop improving.

        if improved by more than tolerance:   reference = step
        if step - reference >= window:        factor = max(factor·decay, min_factor)
                                              reference = step

    after each evaluation that task.eval.interval_steps asks for, in order. It is a
    function of the metrics in the run's directory, so a resumed run has the same rates.
    """

    _PARAMS = {
        "metric": ("-loss", "Metric, as in task.eval.best_metric."),
        "tolerance": (0.0, "Largest change of the metric that is no improvement."),
        "window": (10_000, "Steps without improvement before a decay."),
        "decay": (0.5, "Factor of each decay."),
        "min_factor": (0.01, "Smallest value."),
    }

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._factor = tf.Variable(1.0, trainable=False)

    def Value(self) -> tf.Tensor:
        return self._factor.read_value()

    def CheckEvaluations(
        self, interval_steps: int | None, names: Iterable[str]
    ) -> None:
        """Raises ValueError unless the run's evaluations have the metric."""
        if interval_steps is None:
            raise UserValueError(
                "task.eval.interval_steps: DevBasedSchedule needs evaluations while "
                "training. Set it."
            )
        name = self.params.metric.removeprefix("-")
        check_choice(name, sorted(names), "task.train.lr_schedule.metric")

    def FollowEvaluations(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Sets the value after all evaluations so far: metrics, with their `step`."""
        p = self.params
        sign = -1.0 if p.metric.startswith("-") else 1.0
        best, reference, factor = -math.inf, 0, 1.0
        for record in records:
            step, value = record["step"], sign * float(record[p.metric.lstrip("-")])
            if value > best + p.tolerance:
                best, reference = value, step
            if step - reference >= p.window:
                factor, reference = max(factor * p.decay, p.min_factor), step
        self._factor.assign(factor)
