"""The evaluations of a training run: logged, compared, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.best_evaluation import SPLIT, BestEvaluation
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.run_directory import RunDirectory


class _StoppingError(Exception):
    """Leaves an evaluation that nobody waits for any more."""


class RunEvaluations:
    """Evaluates a task at steps of its run.

    Args:
        task: the task.
        evaluation: of it, traced.
        test_input: has `EvalBatches()`.
        directory: of the run.
        metrics_log: of the run.
        log: takes a line of text for the user.
        is_stopping: whether the run was asked to end; an evaluation then ends too.
    """

    def __init__(
        self,
        task: BaseTask,
        evaluation: Evaluation,
        test_input: Any,
        directory: RunDirectory,
        metrics_log: MetricsLog,
        log: Callable[[str], None],
        is_stopping: Callable[[], Any],
    ):
        self._task = task
        self._evaluation = evaluation
        self._test_input = test_input
        self._directory = directory
        self._metrics_log = metrics_log
        self._log = log
        self._is_stopping = is_stopping
        self._interval = task.params.eval.interval_steps
        # A run that goes on evaluates no step again, if that step was saved after it.
        self._records = read_metrics(directory.path)
        self.best = BestEvaluation(task.params.eval)
        self.best.check_metrics(evaluation.metric_names)
        self.best.add_all(self._records)
        self._note_best()

    def is_due(self, step: int) -> bool:
        """Whether the step is one after which to evaluate."""
        return self._interval is not None and step > 0 and step % self._interval == 0

    def is_missing(self, step: int) -> bool:
        """Whether the run was stopped after a step, before its evaluation."""
        return self.is_due(step) and self._recorded(step) is None

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluates the present state, that after `step` steps.

        Returns:
            The metrics; none if the run is stopping.
        """
        draws = self._task.params.eval.pictures
        pictures = self._task.MakePictures(self._test_input) if draws else None
        try:
            metrics = self._evaluation(self._batches(), pictures)
        except _StoppingError:
            return {}
        # A run that had ended before says the same again.
        if self._recorded(step) != metrics:
            self._metrics_log.write(step, SPLIT, metrics)
            if pictures is not None:
                self._metrics_log.write_pictures(step, SPLIT, pictures.Draw())
        if self.best.add(step, metrics):
            self._note_best()
        self._log(f"step {step}: {SPLIT} {_text(metrics)}")
        return metrics

    def _batches(self) -> Iterator[NestedMap]:
        for batch in self._test_input.EvalBatches():
            if self._is_stopping():
                raise _StoppingError
            yield batch

    def _recorded(self, step: int) -> dict[str, Any] | None:
        for record in reversed(self._records):
            if record["step"] == step and record["split"] == SPLIT:
                return {k: v for k, v in record.items() if k not in ("step", "split")}
        return None

    def _note_best(self) -> None:
        if self.best.step is not None:
            self.best.write(self._directory.best_path)


def _text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
