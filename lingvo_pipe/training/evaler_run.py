"""Evaluates a run's checkpoints, in a process beside the trainer's or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tqdm

from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_vocabulary import check_vocabulary
from lingvo_pipe.training.run_weights import weights_in_turn


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

    The metrics are kept in `LOGDIR/evaler`, which no trainer writes.

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
    written = [line for line in _lines(directory) if line["split"] == split]
    with MetricsLog(directory.evaler_path) as metrics_log:
        for step in weights_in_turn(task, directory, checkpoint, follow_seconds, log):
            metrics = evaluation(data.EvalBatches())
            # What was evaluated before says the same again.
            if {"step": step, "split": split, **metrics} not in written:
                metrics_log.write(step, split, metrics)
            shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            log(f"step {step}: {split} {shown}")


def _lines(directory: RunDirectory) -> list[dict[str, Any]]:
    there = (directory.evaler_path / "metrics.jsonl").exists()
    return read_metrics(directory.evaler_path) if there else []
