"""The evaluations of a training run: logged, compared, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.best_evaluation import SPLIT, BestEvaluation, write_best
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics, same_metrics
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
        saved_steps: those whose checkpoints the run has.
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
        saved_steps: Collection[int],
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
        self._evaluated: dict[int, dict[str, float]] = {}
        self.best = self._best_of(self._records)
        if self.best.step is not None and self.best.step not in saved_steps:
            log(
                f"The best evaluation, of step {self.best.step}, has no checkpoint any "
                "more. The best is looked for among those that have one."
            )
            self.best = self._best_of(
                [r for r in self._records if r["step"] in saved_steps]
            )
        write_best(directory.best_path, self.best.text())

    def is_due(self, step: int) -> bool:
        """Whether the step is one after which to evaluate."""
        return self._interval is not None and step > 0 and step % self._interval == 0

    def is_missing(self, step: int) -> bool:
        """Whether the run was stopped after a step, before its evaluation."""
        return self.is_due(step) and not any(
            record["step"] == step and record["split"] == SPLIT
            for record in self._records
        )

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluates the present state, that after `step` steps, if it was not yet.

        Returns:
            The metrics; none if the run is stopping.
        """
        if step in self._evaluated:
            return self._evaluated[step]
        draws = self._task.params.eval.pictures
        pictures = self._task.MakePictures(self._test_input) if draws else None
        try:
            metrics = self._evaluation(self._batches(), pictures)
        except _StoppingError:
            return {}
        self._evaluated[step] = metrics
        # A run that had ended before says the same again.
        record = {"step": step, "split": SPLIT, **metrics}
        if not any(same_metrics(record, before) for before in self._records):
            self._metrics_log.write(step, SPLIT, metrics)
            if pictures is not None:
                self._metrics_log.write_pictures(step, SPLIT, pictures.Draw())
        self.best.add(step, metrics)
        self._log(f"step {step}: {SPLIT} {_text(metrics)}")
        return metrics

    def best_on_file(self) -> Callable[[], None]:
        """What writes the best evaluation so far to its file.

        It is to be called when the checkpoint of that evaluation exists.
        """
        path, text = self._directory.best_path, self.best.text()
        return lambda: write_best(path, text)

    def _best_of(self, records: Iterable[Mapping[str, Any]]) -> BestEvaluation:
        best = BestEvaluation(self._task.params.eval)
        best.check_metrics(self._evaluation.metric_names)
        best.add_all(records)
        return best

    def _batches(self) -> Iterator[NestedMap]:
        for batch in self._test_input.EvalBatches():
            if self._is_stopping():
                raise _StoppingError
            yield batch


def _text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
