"""The loop around the training step: batches in, reports and checkpoints out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import MetricsLog
from lingvo_pipe.training.progress import Progress
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.train_step import TrainStep


def train(
    task: BaseTask,
    train_input: Any,
    test_input: Any,
    directory: RunDirectory,
    log: Callable[[str], None] = print,
) -> dict[str, float]:
    """Trains a task to its `max_steps` and evaluates it.

    Goes on from the newest checkpoint in `directory` that can be read. Each step is a
    function of the state in the checkpoint and of the step's number, so that a run that
    was killed and resumed ends in the same bytes as one that was not.

    Args:
        task: the task, just instantiated.
        train_input: has `TrainBatches(start_step)` and `params.batch_size`.
        test_input: has `EvalBatches()`.
        directory: where the run is kept.
        log: takes a line of text for the user.

    Returns:
        The last evaluation's metrics.

    Raises:
        ValueError: if the params can't be used, or the checkpoint lies beyond max_steps.
        FloatingPointError: if the loss is not finite; the last checkpoint stays.
    """
    p = task.params.train
    _check_intervals(task)
    step = TrainStep(task)
    checkpointer = Checkpointer(
        directory.checkpoints_path, step.State(), p.keep_checkpoints, log
    )
    start = checkpointer.restore() or 0
    if start:
        log(f"Resumed from step {start}.")
    if start > p.max_steps:
        raise ValueError(
            f"max_steps must not lie before the newest checkpoint, of step {start} in "
            f"{directory.path}; got {p.max_steps}. Raise --max_steps or use another "
            "--logdir."
        )
    evaluation = Evaluation(task)
    with MetricsLog(directory.path, resume_step=start) as metrics_log:

        def evaluate(at_step: int) -> dict[str, float]:
            metrics = evaluation(test_input.EvalBatches())
            metrics_log.write(at_step, "test", metrics)
            log(f"step {at_step}: test {_text(metrics)}")
            return metrics

        _run_steps(
            task, step, train_input, start, metrics_log, checkpointer, evaluate
        )
        return evaluate(p.max_steps)


def _run_steps(
    task: BaseTask,
    step: TrainStep,
    train_input: Any,
    start: int,
    metrics_log: MetricsLog,
    checkpointer: Checkpointer,
    evaluate: Callable[[int], Any],
) -> None:
    p, eval_interval = task.params.train, task.params.eval.interval_steps
    batch_size = train_input.params.batch_size
    with Progress(p.max_steps, batch_size, start) as progress:
        for n, batch in _numbered(train_input, start, p.max_steps):
            metrics = _means(step(batch))
            _check_finite(n, metrics)
            is_last = n == p.max_steps
            if is_last or n % p.report_interval_steps == 0:
                progress.report(n, metrics["loss"])
                metrics_log.write(n, "train", metrics)
            if eval_interval and n % eval_interval == 0 and not is_last:
                evaluate(n)
            # Last, so that whatever a checkpoint's step has reported is on file.
            if is_last or n % p.save_interval_steps == 0:
                checkpointer.save(n)


def _numbered(
    train_input: Any, start: int, max_steps: int
) -> Iterator[tuple[int, NestedMap]]:
    """The batches of the remaining steps, with the number each step will have made."""
    if start < max_steps:
        steps = range(start + 1, max_steps + 1)
        yield from zip(steps, train_input.TrainBatches(start), strict=False)


def _means(metrics: NestedMap) -> dict[str, float]:
    return {name: float(mean) for name, (mean, _) in metrics.items()}


def _text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _check_finite(step: int, metrics: Mapping[str, float]) -> None:
    if not math.isfinite(metrics["loss"]):
        raise FloatingPointError(
            f"The loss must stay finite; at step {step} it is {metrics['loss']}. The last "
            "checkpoint is kept; lower task.train.learning_rate or set "
            "task.train.clip_gradient_norm_to_value, and start again to go on from it."
        )


def _check_intervals(task: BaseTask) -> None:
    p = task.params.train
    wanted = {
        "task.train.max_steps": p.max_steps,
        "task.train.save_interval_steps": p.save_interval_steps,
        "task.train.report_interval_steps": p.report_interval_steps,
    }
    if task.params.eval.interval_steps is not None:
        wanted["task.eval.interval_steps"] = task.params.eval.interval_steps
    wrong = [
        f"{name} is {value!r}"
        for name, value in wanted.items()
        if not isinstance(value, int) or value < 1
    ]
    if wrong:
        raise ValueError(
            f"Numbers of steps must be integers of at least 1; {', '.join(wrong)}."
        )
