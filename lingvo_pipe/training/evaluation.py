"""Evaluation: the metrics over one pass of a data set, pipelined."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask


class Evaluation:
    """Evaluates a task with its present variables."""

    def __init__(self, task: BaseTask):
        self._task = task
        self._function = tf.function(self._run, autograph=False)

    def Trace(self, batch_spec: NestedMap) -> None:
        """As of TrainStep."""
        self._function.get_concrete_function(batch_spec)

    def __call__(self, batches: Iterable[NestedMap]) -> dict[str, float]:
        """Returns each metric's mean over all examples of `batches`.

        Raises:
            ValueError: if there are no batches, or none of their examples counts.
        """
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        for batch in batches:
            for name, (mean, weight) in self._evaluate(batch).items():
                totals[name] = totals.get(name, 0.0) + float(mean) * float(weight)
                weights[name] = weights.get(name, 0.0) + float(weight)
        if not totals:
            raise ValueError(
                "An evaluation needs at least 1 batch; there was none. Check the input."
            )
        empty = sorted(name for name, weight in weights.items() if not weight)
        if empty:
            raise ValueError(
                f"An evaluation needs examples that count; the total weight of {empty} "
                "is 0. Check the weights in the input's batches."
            )
        return {name: totals[name] / weights[name] for name in totals}

    def _evaluate(self, batch: NestedMap) -> NestedMap:
        try:
            return self._function(batch)
        except (tf.errors.CancelledError, tf.errors.InvalidArgumentError):
            with ForwardContext(do_eval=True):
                self._task.Diagnose(batch)
            raise

    def _run(self, input_batch: NestedMap) -> NestedMap:
        task = self._task
        with ForwardContext(do_eval=True):
            return task.ComputeMetrics(task.Values(), input_batch)
