"""Weights of a run's checkpoints, for processes other than the run's trainer."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lingvo_pipe.core.activity import activity
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.regular_file import damaged
from lingvo_pipe.training.checkpoint.checkpoint_files import (
    PASSING,
    stem_of,
    steps_in,
)
from lingvo_pipe.training.checkpoint.restored_weights import restore_weights
from lingvo_pipe.training.checkpoint.whole_weights import whole_variables
from lingvo_pipe.training.run.best_evaluation import BEST_HINT, SPLIT, read_best
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory, check_params_present
from lingvo_pipe.training.task.base_task import BaseTask

_Result = TypeVar("_Result")

BEST = "best"

_POLL_SECONDS = 1.0


def open_run(
    logdir: str | Path,
    model_name: str | None,
    follow_seconds: float | None = None,
    allow_foreign: bool = False,
    writes: bool = False,
) -> RunDirectory:
    """Waits up to `follow_seconds` for a run to start, and returns its directory.

    Raises:
        ValueError: if the run has not started, or has another model than `model_name`.
    """
    params, end = Path(logdir) / "params.txt", time.monotonic() + (follow_seconds or 0)
    with activity(f"waiting for a run in {logdir}"):
        while not os.path.exists(params) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
    if not os.path.exists(params):
        check_params_present(Path(logdir))
        raise UserValueError(
            path="--logdir",
            expected="the directory of a trained run",
            got=str(logdir),
            hint="Train first, with the same --logdir.",
        )
    return RunDirectory(logdir, model_name, allow_foreign, writes)


def weights_in_turn(
    task: BaseTask,
    directory: RunDirectory,
    checkpoint: str | None,
    follow_seconds: float | None,
    log: Callable[[str], None],
) -> Iterator[int]:
    """Restores checkpoints into a task, one after another, and yields their steps.

    If `follow_seconds` is None, restores one checkpoint. `checkpoint` is its name,
    `best`, or None for the newest. Otherwise restores the newest checkpoint, and later
    each newer one, until the run ends or none has appeared for `follow_seconds`. Waits
    as long for a disk that cannot be read now.

    Raises:
        ValueError: if a checkpoint or best evaluation is unusable, or none appeared.
    """
    variables, path = whole_variables(task), directory.checkpoints_path
    if follow_seconds is None:
        if checkpoint == BEST:
            best = read_best(directory.best_path)
            if not best:
                raise UserValueError(
                    path="--checkpoint",
                    expected=f"a name, since {directory.path} has no best evaluation",
                    got=BEST,
                    hint="Or set task.eval.best_metric for training.",
                )
            _check_best(best, directory)
            checkpoint = stem_of(best["step"])
        yield restore_weights(variables, path, checkpoint, log)
        return
    patience = follow_seconds

    def patient(read: Callable[[], _Result]) -> _Result:
        return _patient(read, patience, log)

    used = None
    for _ in new_checkpoints(
        lambda: patient(lambda: steps_in(path)),
        lambda: patient(directory.last_step),
        patience,
    ):
        # By now the trainer may have saved more, and deleted this checkpoint.
        step = patient(lambda: restore_weights(variables, path, None, log))
        if step != used:
            yield step
        used = step
    if used is None:
        raise UserValueError(
            path=str(path),
            expected=f"a checkpoint within {follow_seconds:g} seconds",
            got=Words("none"),
            hint="Check that the trainer runs, or raise --follow_seconds.",
        )
    last = directory.last_step()
    if last is None or used < last:
        why = f"no newer checkpoint appeared for {follow_seconds:g} seconds"
        if max(steps_in(path), default=used) > used:
            why = "newer checkpoints are damaged"
        log(f"Followed to step {used}: {why}. The run's last step will be {last}.")


def _patient(
    read: Callable[[], _Result], patience_seconds: float, log: Callable[[str], None]
) -> _Result:
    """Returns what `read` returns, once the disk that it reads can be read.

    Raises:
        OSError: if it cannot be read for `patience_seconds`.
    """
    end, is_logged = time.monotonic() + patience_seconds, False
    while True:
        try:
            return read()
        except OSError as error:
            if error.errno not in PASSING or time.monotonic() >= end:
                raise
            if not is_logged:
                log(f"{error}. Trying again for up to {patience_seconds:g} seconds.")
            is_logged = True
        time.sleep(_POLL_SECONDS)


def _check_best(best: Mapping[str, Any], directory: RunDirectory) -> None:
    records = read_metrics(directory.path)
    tests = [record for record in records if record["split"] == SPLIT]
    if tests and not any(best.items() <= record.items() for record in tests):
        expected = "one of the evaluations in metrics.jsonl"
        raise damaged(directory.best_path, expected, best, BEST_HINT)


def new_checkpoints(
    saved_steps: Callable[[], Sequence[int]],
    last_step: Callable[[], int | None],
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields the step of the newest checkpoint, each time that a newer one appears.

    Stops at the run's last step, or when no newer checkpoint has appeared for
    `patience_seconds`. Until the run starts, `saved_steps` returns none, and
    `last_step` None.
    """
    seen, since = -1, clock()
    while True:
        newest = max(saved_steps(), default=-1)
        if newest > seen:
            seen = newest
            yield newest
            since = clock()
            continue
        last = last_step()
        is_last = last is not None and seen >= last
        if is_last or clock() - since > patience_seconds:
            return
        sleep(_POLL_SECONDS)
