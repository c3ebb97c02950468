"""Evaluation: the metrics over one pass of a data set, pipelined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.diagnosis import may_be_diagnosed
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.eval_pictures import EvalPictures


class Evaluation:
    """Evaluates a task with its present variables, or what stands for them."""

    def __init__(self, task: BaseTask, values: Callable[[], NestedMap] | None = None):
        """Initialises the evaluation.

        Args:
            task: the task.
            values: reads what to evaluate with, in the structure of `task.vars`; None:
                `task.Values`.
        """
        self._task = task
        self._values = values or task.Values
        self._names: list[str] = []
        self._function = tf.function(self._run, autograph=False)
        self._predictions = tf.function(self._predict, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """As of TrainStep."""
        traced = self._function.get_concrete_function(batch_spec)
        self._names = sorted(traced.structured_outputs)

    @property
    def metric_names(self) -> list[str]:
        """The metrics' names, known once it is traced."""
        return self._names

    def __call__(
        self, batches: Iterable[NestedMap], pictures: EvalPictures | None = None
    ) -> dict[str, float]:
        """Returns each metric's mean over all examples of `batches`.

        A metric of which nothing counts, all its weights being 0, has no mean and is
        left out.

        Args:
            batches: at least one.
            pictures: are shown each batch with its predictions, for which it runs
                forward once more; None: it does not.

        Raises:
            ValueError: if there are no batches, or nothing counts for their loss.
        """
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        for batch in batches:
            for name, (mean, weight) in self._evaluate(batch).items():
                weights[name] = weights.get(name, 0.0) + float(weight)
                if weight:  # Else its mean may be anything, even no number.
                    totals[name] = totals.get(name, 0.0) + float(mean) * float(weight)
            if pictures is not None:
                pictures.Add(batch, self._predictions(batch))
        if not weights:
            raise ValueError(
                "An evaluation needs at least 1 batch; there was none. Check the input."
            )
        if not weights["loss"]:
            empty = sorted(name for name, weight in weights.items() if not weight)
            raise ValueError(
                f"An evaluation needs examples that count; the total weight of {empty} "
                "is 0. Check the weights in the input's batches."
            )
        return {
            name: totals[name] / weight for name, weight in weights.items() if weight
        }

    def _evaluate(self, batch: NestedMap) -> NestedMap:
        try:
            return self._function(batch)
        except tf.errors.OpError as error:
            if may_be_diagnosed(error):
                not_asked = contextlib.suppress(FloatingPointError)
                with ForwardContext(do_eval=True), not_asked:
                    self._task.Diagnose(self._values(), batch)
            raise

    def _run(self, input_batch: NestedMap) -> NestedMap:
        with ForwardContext(do_eval=True):
            return self._task.ComputeMetrics(self._values(), input_batch)

    def _predict(self, input_batch: NestedMap) -> Any:
        with ForwardContext(do_eval=True):
            return self._task.ComputePredictions(self._values(), input_batch)
