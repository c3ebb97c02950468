"""Evaluates a run's checkpoints, in a process beside the trainer's or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tqdm

from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_vocabulary import check_vocabulary
from lingvo_pipe.training.run_weights import weights_in_turn
from lingvo_pipe.training.shared_log import shared_log


def evaluate_run(
    task: BaseTask,
    data: Any,
    directory: RunDirectory,
    split: str,
    checkpoint: str | None = None,
    follow_seconds: float | None = None,
    log: Callable[[str], None] = tqdm.tqdm.write,
) -> None:
    """Evaluates one checkpoint or, following a trainer, one after another.

    The metrics are kept in `LOGDIR/evaler`, which no trainer writes. Several such
    evaluations may go on at a time.

    Args:
        task: the task, just instantiated.
        data: has `EvalBatches()`.
        directory: of the run.
        split: the name of the data.
        checkpoint: see `weights_in_turn`.
        follow_seconds: likewise.
        log: takes a line of text for the user, while a bar may be shown.

    Raises:
        ValueError: if a checkpoint or the vocabulary does not serve, or there is
            nothing to evaluate.
    """
    check_vocabulary(directory.path, data)
    evaluation = Evaluation(task)
    evaluation.Trace(data.EvalBatches().element_spec)
    for step in weights_in_turn(task, directory, checkpoint, follow_seconds, log):
        metrics = evaluation(data.EvalBatches())
        with shared_log(directory.evaler_path) as metrics_log:
            # What was evaluated before says the same again.
            if not metrics_log.holds(step, split, metrics):
                metrics_log.write(step, split, metrics)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        log(f"step {step}: {split} {shown}")
