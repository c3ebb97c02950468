"""The loop around the training step: batches in, reports and checkpoints out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tqdm

from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.changed_params import check_changes
from lingvo_pipe.training.checkpoint_files import steps_in
from lingvo_pipe.training.loop_params import check_loop_params
from lingvo_pipe.training.loss_spikes import LossSpikeError, check_spike_params
from lingvo_pipe.training.planned_step import PlannedStep
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.step_profiler import check_profile_step
from lingvo_pipe.training.stop_requests import StopRequests
from lingvo_pipe.training.training_run import TrainingRun


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
) -> dict[str, float]:
    """Trains a task to its `max_steps`, or until asked to stop, and evaluates it.

    Goes on from the newest checkpoint in `directory` that can be read. Each step is a
    function of the state in the checkpoint and of the step's number, so that a run that
    was killed and resumed ends in the same bytes as one that was not.

    Nothing is written before params, checkpoint and batches are known to fit together.

    Args:
        task: the task, just instantiated.
        train_input: has `TrainBatches(start_step)` and `params.batch_size`.
        test_input: has `EvalBatches()`.
        directory: where the run is kept.
        params_text: all params of the run, to be kept there.
        log: takes a line of text for the user, while a bar may be shown.
        profile_step: the step to profile, if any; see `StepProfiler`.
        allowed_changes: paths of params that may differ from those of the run so far;
            see `check_changes`.
        planned: what is expected of a step, to be compared with the profiled one.

    Returns:
        The last evaluation's metrics; none if the run was asked to stop before it.

    Raises:
        ValueError: if the params can't be used, the batches don't fit the model or end
            too soon, the checkpoint lies beyond max_steps or is that of another
            vocabulary, or another process trains in the directory.
        FloatingPointError: if the loss, a gradient or a variable to be saved is not
            finite, or the loss has a spike, more often than the params allow; the last
            checkpoint stays.
    """
    check_loop_params(task.params)
    check_spike_params(task.params.train)
    if profile_step is not None:
        check_profile_step(profile_step, task.params.train.max_steps)
    try:
        before = directory.read_params()
        if before is not None:
            directory.lock()  # Before reading what another trainer may be writing.
            if steps_in(directory.checkpoints_path):
                check_changes(before, params_text, allowed_changes)
        run = TrainingRun(task, train_input, test_input, directory, log)
        directory.lock()
        _check_same(before, directory)
        run.begin(params_text)
        with StopRequests() as stops:
            while True:
                try:
                    return run.go_on(test_input, profile_step, stops, planned)
                except LossSpikeError as spike:
                    run.roll_back(spike)
    finally:
        directory.unlock()


def _check_same(before: str | None, directory: RunDirectory) -> None:
    """Raises ValueError if another trainer began the run while this one was built."""
    if directory.read_params() != before:
        raise ValueError(
            "A run must be trained by one trainer at a time; while this one was being "
            f"built, another began the run in {directory.path}. Start again to go on "
            "with that run, or choose another --logdir."
        )
