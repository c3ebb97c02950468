"""Weights of a run's checkpoints, for other processes, which may follow the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.training.checkpoint.checkpoint_files import stem_of, steps_in
from lingvo_pipe.training.checkpoint.restored_weights import restore_weights
from lingvo_pipe.training.run.best_evaluation import read_best_step
from lingvo_pipe.training.run.run_directory import RunDirectory, read_model_name
from lingvo_pipe.training.task.base_task import BaseTask

BEST = "best"

_POLL_SECONDS = 1.0


def open_run(
    logdir: str | Path, model_name: str | None, follow_seconds: float | None = None
) -> RunDirectory:
    """Returns the directory of a run that has started.

    Args:
        logdir: the run's directory.
        model_name: name of the run's model; if None, any.
        follow_seconds: seconds to wait for the run to start.

    Raises:
        ValueError: if the run has not started, or is another model's.
    """
    params, end = Path(logdir) / "params.txt", time.monotonic() + (follow_seconds or 0)
    while not params.is_file() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if not params.is_file():
        raise UserValueError(
            f"--logdir: expected the directory of a trained run, got {logdir}. "
            "Train first, with the same --logdir."
        )
    return RunDirectory(logdir, model_name or read_model_name(params))


def weights_in_turn(
    task: BaseTask,
    directory: RunDirectory,
    checkpoint: str | None,
    follow_seconds: float | None,
    log: Callable[[str], None],
) -> Iterator[int]:
    """Restores a task's weights from a checkpoint, and yields the checkpoint's step.

    Args:
        task: the task.
        directory: the run's directory.
        checkpoint: name of the checkpoint, or `best` for the best evaluation's; if
            None, the newest.
        follow_seconds: maximum seconds to wait for a checkpoint; if given, yields the
            newest and each later one until the run ends or the wait is over.
        log: callback for a line of text for the user.

    Raises:
        ValueError: if a checkpoint is unusable, the run has no best evaluation, or no
            checkpoint appeared.
    """
    variables, path = task.VariablePaths(), directory.checkpoints_path
    if follow_seconds is None:
        if checkpoint == BEST:
            checkpoint = _best(directory)
        yield restore_weights(variables, path, checkpoint, log)
        return
    used = None
    for _ in new_checkpoints(path, directory.last_step, follow_seconds):
        # By now the trainer may have saved more, and deleted this checkpoint.
        step = restore_weights(variables, path, None, log)
        if step != used:
            yield step
        used = step
    if used is None:
        raise UserValueError(
            f"No checkpoint appeared in {path} within {follow_seconds:g} seconds. "
            "Check that the trainer runs, or raise --follow_seconds."
        )
    last = directory.last_step()
    if last is None or used < last:
        log(
            f"Followed to step {used}: no newer checkpoint appeared for "
            f"{follow_seconds:g} seconds. The run's last step will be {last}."
        )


def new_checkpoints(
    directory: Path,
    last_step: Callable[[], int | None],
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields the newest checkpoint's step each time it changes.

    It skips checkpoints older than the newest. It ends with the run's last step, or
    when no new checkpoint has appeared for some time, since the trainer may have ended.

    Args:
        directory: directory of the checkpoints, which may not exist yet.
        last_step: function that returns the run's last step, or None until it has
            started.
        patience_seconds: seconds to wait for a new checkpoint.
        clock: function that returns the time in seconds.
        sleep: function that waits for a number of seconds.
    """
    seen, since = -1, clock()
    while clock() - since <= patience_seconds:
        newest = max(steps_in(directory), default=-1)
        if newest > seen:
            seen = newest
            yield newest
            since = clock()
            continue
        last = last_step()
        if last is not None and seen >= last:
            return
        sleep(_POLL_SECONDS)


def _best(directory: RunDirectory) -> str:
    step = read_best_step(directory.best_path)
    if step is None:
        raise UserValueError(
            f"--checkpoint={BEST}: the run in {directory.path} has no best evaluation. "
            "Set task.eval.best_metric for training, or pass a checkpoint's name."
        )
    return stem_of(step)
