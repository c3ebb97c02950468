"""The entry point of the training loop: trains a task in a directory."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tqdm

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.loop.save_times import SaveRequest
from lingvo_pipe.training.loop.training_run import TrainingRun
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.profiling.step_profiler import check_profile_step
from lingvo_pipe.training.run.changed_params import check_changes
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.task_params import check_loop_params
from lingvo_pipe.training.warm_start.init_from_checkpoint import keep_source


def train(
    task: BaseTask,
    train_input: Any,
    test_input: Any,
    directory: RunDirectory,
    params_text: str,
    log: Callable[[str], None] = tqdm.tqdm.write,
    profile_step: int | None = None,
    allowed_changes: Sequence[str] = (),
    planned: PlannedStep | None = None,
    restart_cause: str = "",
    save_request: SaveRequest | None = None,
    building: AbstractContextManager[None] | None = None,
) -> dict[str, float]:
    """Trains a task to its `max_steps`, or until a signal stops it, and evaluates it.

    The run resumes from the newest intact checkpoint in `directory`, and ends in the
    same bytes as an uninterrupted run. Nothing is written until params, checkpoint and
    batches prove to fit. Returns the last evaluation's metrics, empty if a signal
    stopped the run before it.

    The task must be new. `train_input` has `TrainBatches(start_step)`, and
    `test_input` has `EvalBatches()`. `log` may be called while a progress bar is shown.
    `allowed_changes` are for `check_changes`. `planned` is compared with the step
    `profile_step`. Graphs are built in the context `building`.

    Raises:
        ValueError: if params, batches or checkpoint do not fit, or another process
            trains in the directory.
        FloatingPointError: if numbers are not finite, or the loss has a spike, more
            often than the params allow. The last checkpoint stays.
    """
    check_loop_params(task.params)
    if profile_step is not None:
        check_profile_step(profile_step, task.params.train.max_steps)
    changes: list[str] = []
    try:
        before = directory.read_params()
        if before is not None:
            directory.lock()  # Before reading what another trainer may be writing.
            if steps_in(directory.checkpoints_path):
                changes = check_changes(before, params_text, allowed_changes)
                params_text = keep_source(before, params_text, log)
        with building or contextlib.nullcontext():
            run = TrainingRun(
                task,
                train_input,
                test_input,
                directory,
                log,
                restart_cause,
                save_request,
            )
        directory.lock()
        if directory.read_params() != before:
            raise UserValueError(
                path=str(directory.path),
                expected="one trainer at a time",
                got=Words("another, which started this run meanwhile"),
                hint="Rerun to resume that run, or choose another --logdir.",
            )
        run.start(params_text, changes)
        return run.train(profile_step, planned)
    finally:
        directory.unlock()
