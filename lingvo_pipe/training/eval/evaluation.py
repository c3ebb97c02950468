"""Evaluation: means of a task's metrics over a data set, computed by its pipeline."""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import on_this_host
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug import diagnosis
from lingvo_pipe.training.run.metrics_log import check_names
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.input_checks import check_weights
from lingvo_pipe.training.task.protocols import EvalImages


class Evaluation:
    """A callable that evaluates a task on batches.

    `values` returns the weights, in the structure of `task.vars`. If `values` is None,
    the task's variables are used.
    """

    def __init__(self, task: BaseTask, values: Callable[[], NestedMap] | None = None):
        self._task, self._values = task, values or task.Values
        self.metric_names: list[str] = []  # Known after `Trace`.
        self.warnings: list[str] = []  # The last call's, about metrics not finite.
        self._function = tf.function(self._run, autograph=False)
        self._predictions = tf.function(self._predict, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """Builds the graph for batches of these tf.TensorSpecs.

        Raises:
            ValueError: if a metric has a name that cannot be logged.
        """
        traced = self._function.get_concrete_function(batch_spec)
        self.metric_names = sorted(traced.structured_outputs)
        check_names(self.metric_names)

    def __call__(
        self, batches: Iterable[NestedMap], images: EvalImages | None = None
    ) -> dict[str, float]:
        """Returns each metric's mean over all examples of `batches`.

        A metric whose weights are all 0 is left out. `images`, if given, gets each
        batch and its predictions, for which the batch runs forward once more.

        Raises:
            ValueError: if there are no batches, or the loss's total weight is 0.
        """
        sums: dict[str, float] = defaultdict(float)
        weights: dict[str, float] = defaultdict(float)
        not_finite: Counter[str] = Counter()
        num_batches = 0
        for batch in diagnosis.naming_reads(batches):
            check_weights(batch)
            num_batches += 1
            for name, (mean, weight) in self._evaluate(batch).items():
                weights[name] += float(weight)
                sums[name] += float(mean) * float(weight)
                not_finite[name] += not math.isfinite(mean)
            if images is not None:
                images.Add(batch, self._predictions(batch))
        if not weights:
            expected = "at least 1 batch for an evaluation"
            raise UserValueError(path="EvalBatches", expected=expected, got=0)
        if not weights["loss"]:
            empty = sorted(name for name, weight in weights.items() if not weight)
            raise UserValueError(
                path="EvalBatches",
                expected="examples of positive weight",
                got=Words(f"a total weight of 0 for {empty}"),
            )
        self.warnings = [
            f"warning: {name} is not finite in {count} of {num_batches} batches"
            for name, count in not_finite.items()
            if count
        ]
        return {name: sums[name] / weight for name, weight in weights.items() if weight}

    def _evaluate(self, batch: NestedMap) -> NestedMap:
        try:
            return self._function(batch)
        except tf.errors.OpError as error:
            if diagnosis.may_be_diagnosed(error):
                allowed = contextlib.suppress(FloatingPointError)
                with ForwardContext(do_eval=True), allowed:
                    self._task.Diagnose(self._values(), batch)
            with diagnosis.naming("an evaluation"):
                raise

    def _run(self, input_batch: NestedMap) -> NestedMap:
        with ForwardContext(do_eval=True):
            metrics = self._task.ComputeMetrics(self._values(), input_batch)
        return on_this_host(metrics)

    def _predict(self, input_batch: NestedMap) -> Any:
        with ForwardContext(do_eval=True):
            predictions = self._task.ComputePredictions(self._values(), input_batch)
        return on_this_host(predictions)
