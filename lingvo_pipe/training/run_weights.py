"""The weights that a run has trained, for what evaluates or uses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.best_evaluation import read_best_step
from lingvo_pipe.training.checkpoint_files import stem_of
from lingvo_pipe.training.followed_checkpoints import new_checkpoints
from lingvo_pipe.training.restored_weights import restore_weights
from lingvo_pipe.training.run_directory import RunDirectory, read_model_name

BEST = "best"
_POLL_SECONDS = 1.0


def open_run(
    logdir: str | Path, model_name: str | None, follow_seconds: float | None = None
) -> RunDirectory:
    """Returns the directory of a run that has begun.

    Args:
        logdir: of the run.
        model_name: what it trains; None: whatever that is.
        follow_seconds: for how long to wait for a run that has not; None: not at all.

    Raises:
        ValueError: if there is none, or it is another model's.
    """
    begun, end = Path(logdir) / "params.txt", time.monotonic() + (follow_seconds or 0)
    while not begun.is_file() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if not begun.is_file():
        raise ValueError(
            f"logdir must be the directory of a run that has been trained; {logdir} is "
            "none. Train first, with the same --logdir."
        )
    return RunDirectory(logdir, model_name or read_model_name(begun))


def weights_in_turn(
    task: BaseTask,
    directory: RunDirectory,
    checkpoint: str | None,
    follow_seconds: float | None,
    log: Callable[[str], None],
) -> Iterator[int]:
    """Gives a task the weights of a checkpoint, and yields the step that it is of.

    Args:
        task: the task.
        directory: of the run.
        checkpoint: its name; `best`: that of the best evaluation; None: the newest.
        follow_seconds: None: there is one. Else there is the newest, and then each that
            is newer, until the run is over or for so many seconds nothing has come.
        log: takes a line of text for the user.

    Raises:
        ValueError: as of `restore_weights`; if the run has no best evaluation; or if
            there was nothing to follow.
    """
    variables, path = task.VariablePaths(), directory.checkpoints_path
    if follow_seconds is None:
        if checkpoint == BEST:
            checkpoint = _best(directory)
        yield restore_weights(variables, path, checkpoint, log)
        return
    used = None
    for _ in new_checkpoints(path, directory.last_step, follow_seconds):
        # The trainer may have saved more since, and deleted what was new then.
        step = restore_weights(variables, path, None, log)
        if step != used:
            yield step
        used = step
    if used is None:
        raise ValueError(
            f"A run that is followed must save checkpoints; none came to {path} within "
            f"{follow_seconds:g} seconds. See that its trainer runs, or raise "
            "--follow_seconds."
        )
    last = directory.last_step()
    if last is None or used < last:
        log(
            f"Followed to step {used}: for {follow_seconds:g} seconds nothing newer "
            f"came. The run's last step is to be {last}."
        )


def _best(directory: RunDirectory) -> str:
    step = read_best_step(directory.best_path)
    if step is None:
        raise ValueError(
            f"--checkpoint={BEST} needs a run that looks for its best evaluation; that "
            f"in {directory.path} did not. Set task.eval.best_metric when it trains, "
            "or give the name of a checkpoint."
        )
    return stem_of(step)
