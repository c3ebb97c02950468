"""The loop around the training step: batches in, reports and checkpoints out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tqdm

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.training.background_saver import BackgroundSaver
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.changed_params import check_changes
from lingvo_pipe.training.checkpoint_files import steps_in
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.finite import NotFinite
from lingvo_pipe.training.init_from_checkpoint import init_from_checkpoint
from lingvo_pipe.training.metrics_log import MetricsLog
from lingvo_pipe.training.progress import Progress
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_evaluations import RunEvaluations
from lingvo_pipe.training.run_vocabulary import check_vocabulary, keep_vocabulary
from lingvo_pipe.training.step_profiler import StepProfiler, check_profile_step
from lingvo_pipe.training.stop_requests import StopRequests
from lingvo_pipe.training.train_step import TrainStep


def train(
    task: BaseTask,
    train_input: Any,
    test_input: Any,
    directory: RunDirectory,
    params_text: str,
    log: Callable[[str], None] = tqdm.tqdm.write,
    profile_step: int | None = None,
    allowed_changes: Sequence[str] = (),
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

    Returns:
        The last evaluation's metrics; none if the run was asked to stop before it.

    Raises:
        ValueError: if the params can't be used, the batches don't fit the model or end
            too soon, the checkpoint lies beyond max_steps or is that of another
            vocabulary, or another process trains in the directory.
        FloatingPointError: if the loss, a gradient or a variable to be saved is not
            finite; the last checkpoint stays.
    """
    _check_numbers(task)
    if profile_step is not None:
        check_profile_step(profile_step, task.params.train.max_steps)
    try:
        before = directory.read_params()
        if before is not None:
            directory.lock()  # Before reading what another trainer may be writing.
            if steps_in(directory.checkpoints_path):
                check_changes(before, params_text, allowed_changes)
        run = _Run(task, train_input, test_input, directory, log)
        directory.lock()
        run.begin(params_text)
        return run.go_on(test_input, profile_step)
    finally:
        directory.unlock()


class _Run:
    """One training run from the state that its directory holds.

    Creating it restores the state and traces all functions; it writes nothing yet.
    """

    def __init__(
        self,
        task: BaseTask,
        train_input: Any,
        test_input: Any,
        directory: RunDirectory,
        log: Callable[[str], None],
    ):
        p = task.params.train
        self._task, self._train_input = task, train_input
        self._directory, self._log = directory, log
        self._step = TrainStep(task)
        state = self._step.State()
        self._not_finite = NotFinite(state)
        self._checkpointer = Checkpointer(
            directory.checkpoints_path, state, p.keep_checkpoints, log
        )
        self._restored = self._checkpointer.restore()
        self._start = self._restored or 0
        self._max_steps = p.max_steps
        self._check_restored()
        is_told = bool(p.init_from_checkpoint_rules or p.init_from_checkpoint_override)
        self._takes_first_values = self._restored is None and is_told
        if self._takes_first_values:
            init_from_checkpoint(p, task.VariablePaths(), log)
            self._step.StartAveraging()
        self._evaluation = Evaluation(task, self._step.EvalValues)
        self._batches = train_input.TrainBatches(self._start)
        self._step.Trace(self._batches.element_spec)
        self._evaluation.Trace(test_input.EvalBatches().element_spec)

    def begin(self, params_text: str) -> None:
        """Writes what the directory must hold before the first step."""
        self._directory.write_params(params_text)
        keep_vocabulary(self._directory.path, self._train_input)
        self._log(_describe(self._task))
        if self._takes_first_values:
            # Killed from here on, the run needs the other run's checkpoint no more.
            self._checkpointer.save(0)
        if self._restored is not None:
            is_last = self._start == self._max_steps
            finished = ", the last: raise --max_steps to go on" if is_last else ""
            self._log(f"Resumed from step {self._start}{finished}.")

    def go_on(self, test_input: Any, profile_step: int | None) -> dict[str, float]:
        """Trains and evaluates; returns as `train`."""
        with (
            MetricsLog(self._directory.path, resume_step=self._start) as metrics_log,
            BackgroundSaver(self._checkpointer) as saver,
            StopRequests() as stops,
        ):
            evaluations = RunEvaluations(
                self._task,
                self._evaluation,
                test_input,
                self._directory,
                metrics_log,
                self._log,
                is_stopping=lambda: stops.asked_by is not None,
            )
            profiler = None
            if profile_step is not None:
                profiler = StepProfiler(
                    self._task.pipeline,
                    profile_step,
                    self._start,
                    self._directory,
                    metrics_log,
                    self._log,
                )
            last = self._steps(metrics_log, saver, stops, evaluations, profiler)
            if evaluations.best.is_over:
                self._log(f"Stopped after step {last}: {evaluations.best.reason}")
            metrics = {} if stops.asked_by else evaluations.evaluate(last)
            if stops.asked_by:
                self._log(
                    f"Stopped by {stops.asked_by} after step {last}, which is saved. "
                    "The same command goes on from there."
                )
            return metrics

    def _steps(
        self,
        metrics_log: MetricsLog,
        saver: BackgroundSaver,
        stops: StopRequests,
        evaluations: RunEvaluations,
        profiler: StepProfiler | None,
    ) -> int:
        """Trains, saves and evaluates on the way; returns the last step's number."""
        p, n, best = self._task.params.train, self._start, evaluations.best
        if n < self._max_steps and evaluations.is_missing(n):
            evaluations.evaluate(n)
        batches = iter(self._batches)
        examples = self._train_input.params.batch_size
        with Progress(self._max_steps, examples, n) as progress:
            while n < self._max_steps and not (stops.asked_by or best.is_over):
                batch = next(batches, None)
                if batch is None:
                    saver.save(n, best.step)
                    raise _ended(n, self._max_steps)
                metrics = _means(_trained(self._step, batch))
                n += 1
                if profiler:
                    profiler.after_step(n, self._step.Times)
                is_last = n == self._max_steps
                if is_last or n % p.report_interval_steps == 0:
                    progress.report(n, metrics["loss"])
                    metrics_log.write(n, "train", metrics)
                if evaluations.is_due(n) and not is_last and not stops.asked_by:
                    evaluations.evaluate(n)
                # Last, so that whatever a checkpoint's step has reported is on file.
                is_end = is_last or stops.asked_by or best.is_over or best.step == n
                if is_end or n % p.save_interval_steps == 0:
                    _check_finite_state(n, self._not_finite)
                    saver.save(n, best.step)
        return n

    def _check_restored(self) -> None:
        if self._start > self._max_steps:
            raise ValueError(
                "max_steps must not lie before the newest checkpoint, of step "
                f"{self._start} in {self._directory.path}; got {self._max_steps}. "
                "Raise --max_steps or use another --logdir."
            )
        if self._restored is not None:
            check_vocabulary(self._directory.path, self._train_input)


def _describe(task: BaseTask) -> str:
    pipeline = task.pipeline
    devices = map(short_name, pipeline.devices)
    num_trained = _num_parameters(task.TrainedVariables().values())
    every = task.VariablePaths().values()
    num_frozen = _num_parameters(v for v in every if v.trainable) - num_trained
    frozen = f" and {num_frozen:,} frozen" if num_frozen else ""
    return (
        f"parameters: {num_trained:,}{frozen}; stages: {pipeline.num_stages} "
        f"({', '.join(devices)}); micro-batches: {pipeline.params.num_micro_batches}"
    )


def _num_parameters(variables: Iterable[tf.Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _means(metrics: NestedMap) -> dict[str, float]:
    return {name: float(mean) for name, (mean, _) in metrics.items()}


def _ended(step: int, max_steps: int) -> ValueError:
    return ValueError(
        f"TrainBatches must give a batch for each of {max_steps} steps; it ended after "
        f"step {step}, which is saved. Repeat the data, or lower --max_steps."
    )


_NOT_FINITE = (
    "The last checkpoint is kept; lower task.train.learning_rate or set "
    "task.train.clip_gradient_norm_to_value, and start again to go on from it."
)


def _trained(step: TrainStep, batch: NestedMap) -> NestedMap:
    """Trains on a batch; says more of a step that can't be made."""
    try:
        return step(batch)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error} {_NOT_FINITE}") from error


def _check_finite_state(step: int, not_finite: NotFinite) -> None:
    """Keeps checkpoints that can't be gone on from out of the directory."""
    wrong = not_finite.names()
    if wrong:
        raise FloatingPointError(
            f"Variables must stay finite; after step {step} {len(wrong)} are not, the "
            f"first of them {wrong[0]}. {_NOT_FINITE}"
        )


def _check_numbers(task: BaseTask) -> None:
    p = task.params.train
    numbers = {
        "task.train.max_steps": p.max_steps,
        "task.train.save_interval_steps": p.save_interval_steps,
        "task.train.report_interval_steps": p.report_interval_steps,
        "task.train.keep_checkpoints": p.keep_checkpoints,
    }
    if task.params.eval.interval_steps is not None:
        numbers["task.eval.interval_steps"] = task.params.eval.interval_steps
    wrong = [
        f"{name} is {value!r}"
        for name, value in numbers.items()
        if not isinstance(value, int) or value < 1
    ]
    if wrong:
        raise ValueError(
            f"Numbers of steps and checkpoints must be integers of at least 1; "
            f"{', '.join(wrong)}. Set them in the model's Task or by "
            "--model_params_override."
        )
