"""Evaluations of a run, by its trainer or by another process."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lingvo_pipe.core.activity import activity
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.schedule import DevBasedSchedule
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.eval.chance import ClassWeights
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.report.html_report import report_end
from lingvo_pipe.training.run.best_evaluation import (
    SPLIT,
    BestEvaluation,
    is_evaluation_due,
    write_best,
)
from lingvo_pipe.training.run.metrics_log import (
    MetricsLog,
    read_metrics,
    same_metrics,
    shared_log,
)
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_input import check_meaning
from lingvo_pipe.training.task.base_task import BaseTask


class _StoppingError(Exception):
    """Error that ends an evaluation because the run is stopping."""


def evaluate_run(
    task: BaseTask,
    data: Any,
    directory: RunDirectory,
    split: str,
    steps: Iterable[int],
    log: Callable[[str], None],
) -> dict[str, float]:
    """Evaluates one or more checkpoints of a run, and writes their metrics.

    The metrics go to `LOGDIR/evaler`, where several processes may write at a time.
    `steps` restores checkpoints into the task (see `weights_in_turn`). Returns the last
    checkpoint's metrics, empty if there was no checkpoint.

    Raises:
        ValueError: if a checkpoint, the vocabulary or the data is unusable.
    """
    check_meaning(directory.path, data)
    evaluation = Evaluation(task)
    batches = data.EvalBatches()  # Made once, since TensorFlow frees no data set.
    evaluation.Trace(batches.element_spec)
    metrics: dict[str, float] = {}
    for step in steps:
        metrics = evaluation(batches)
        with shared_log(directory.evaler_path) as metrics_log:
            # A repeated evaluation has the same metrics.
            if not metrics_log.contains(step, split, metrics):
                metrics_log.write(step, split, metrics)
        log("\n".join([_line(step, split, metrics), *evaluation.warnings]))
        report_end(directory, log)
    return metrics


@dataclass(eq=False)
class RunEvaluations:
    """The evaluations that a run's trainer makes, logs, compares and draws."""

    task: BaseTask
    evaluation: Evaluation  # Traced.
    test_input: Any  # With `EvalBatches()`.
    directory: RunDirectory
    metrics_log: MetricsLog
    log: Callable[[str], None]
    checkpointer: Checkpointer
    is_stopping: Callable[[], Any]  # Ends an evaluation once it returns true.
    schedules: Sequence[DevBasedSchedule] = ()
    best: BestEvaluation = field(init=False)

    def __post_init__(self) -> None:
        # A resumed run does not repeat evaluations from before its checkpoint.
        self._records = read_metrics(self.directory.path)
        self._evaluated: dict[int, dict[str, float]] = {}
        self._warns_of_chance = True  # Once.
        self.best = BestEvaluation(self.task.params.eval, self._records)
        self.check_best()
        self.write_best()
        self._inform_schedules()

    @property
    def _tests(self) -> list[Mapping[str, Any]]:
        return [record for record in self._records if record["split"] == SPLIT]

    def is_due(self, step: int) -> bool:
        """Returns whether to evaluate after a step."""
        return is_evaluation_due(self.task.params.eval, step)

    def is_missing(self, step: int) -> bool:
        """Returns whether an evaluation is due after a step, but not in the log."""
        return self.is_due(step) and self._logged(step) is None

    def _logged(self, step: int) -> Mapping[str, Any] | None:
        return next((test for test in self._tests if test["step"] == step), None)

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluates the state after `step` once. Returns {} if the run is stopping."""
        if step in self._evaluated:
            return self._evaluated[step]
        draws = self.task.params.eval.images
        images = self.task.MakeEvalImages(self.test_input) if draws else None
        classes = ClassWeights()
        try:
            with activity("evaluating", file_delay=60.0):
                metrics = self.evaluation(self._batches(classes), images)
        except _StoppingError:
            return {}
        self._evaluated[step] = metrics
        record = {"step": step, "split": SPLIT, **metrics}
        before = self._logged(step)
        if before is None:
            self.metrics_log.write(step, SPLIT, metrics)
            if images is not None:
                self.metrics_log.write_images(step, SPLIT, images.Draw())
            self._records.append(record)
            self._inform_schedules()
        elif not same_metrics(record, before):
            self.log(
                f"The evaluation after step {step} differs from the one in "
                f"{self.metrics_log.path}, which stays."
            )
        self.best.add(step, metrics)
        self.log("\n".join([_line(step, SPLIT, metrics), *self.evaluation.warnings]))
        warning = classes.warning(step, metrics)
        if warning and self._warns_of_chance:
            self.log(warning)
            self._warns_of_chance = False
        return metrics

    def check_best(self) -> None:
        """Replaces the best evaluation if its checkpoint is missing or damaged."""
        first, usable = self.best.step, set(self.checkpointer.saved_steps())
        while (step := self.best.step) is not None:
            if step in usable and not self.checkpointer.is_damaged(step):
                break
            usable.discard(step)
            self.best = BestEvaluation(self.task.params.eval, self._records, usable)
        if self.best.step != first:
            self.log(
                f"The best evaluation's checkpoint, of step {first}, is missing or "
                "damaged. The best evaluation with a checkpoint replaces it."
            )

    def best_writer(self) -> Callable[[], None]:
        """Returns a function that will write the evaluation that is best now."""
        path, text = self.directory.best_path, self.best.text()
        return lambda: write_best(path, text)

    def write_best(self) -> None:
        """Writes the best evaluation's file. The checkpoint must already exist."""
        write_best(self.directory.best_path, self.best.text())

    def _inform_schedules(self) -> None:
        # The evaluation after the last step of a run that is resumed must not count.
        due = [test for test in self._tests if self.is_due(test["step"])]
        for schedule in self.schedules:
            schedule.FollowEvaluations(due)

    @functools.cached_property
    def _data_set(self) -> Iterable[NestedMap]:
        return self.test_input.EvalBatches()

    def _batches(self, classes: ClassWeights) -> Iterator[NestedMap]:
        for batch in self._data_set:
            if self.is_stopping():
                raise _StoppingError
            classes.add(batch)
            yield batch


def _line(step: int, split: str, metrics: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return f"step {step}: {split} {shown}"
