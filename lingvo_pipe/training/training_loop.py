"""The loop around the training step: batches in, reports and checkpoints out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tqdm

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.background_saver import BackgroundSaver
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.changed_params import check_changes
from lingvo_pipe.training.checkpoint_files import steps_in
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.finite import NotFinite
from lingvo_pipe.training.init_from_checkpoint import init_from_checkpoint
from lingvo_pipe.training.input_place import InputPlace
from lingvo_pipe.training.loop_params import check_loop_params
from lingvo_pipe.training.loss_spikes import (
    LossSpikeError,
    LossSpikes,
    check_spike_params,
)
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.progress import Progress
from lingvo_pipe.training.report.html_report import report_end
from lingvo_pipe.training.run_description import describe_run
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_evaluations import RunEvaluations
from lingvo_pipe.training.run_vocabulary import check_vocabulary, keep_vocabulary
from lingvo_pipe.training.skipped_batches import SkippedBatches
from lingvo_pipe.training.skipped_steps import SkippedSteps
from lingvo_pipe.training.stage_utilisation import stage_utilisation
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
        run = _Run(task, train_input, test_input, directory, log)
        directory.lock()
        run.begin(params_text)
        while True:
            try:
                return run.go_on(test_input, profile_step)
            except LossSpikeError as spike:
                run.roll_back(spike)
    finally:
        directory.unlock()


@dataclass(frozen=True)
class _Watchers:
    """What goes along with the steps."""

    metrics_log: MetricsLog
    saver: BackgroundSaver
    stops: StopRequests
    evaluations: RunEvaluations
    spikes: LossSpikes
    profiler: StepProfiler | None


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
        self._skipped_steps = SkippedSteps(p)
        self._skipped_batches = SkippedBatches(directory.skipped_batches_path)
        self._place = InputPlace(train_input)
        state = self._step.State() | self._place.state()
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
        self._step.Trace(self._place.batches(self._start).element_spec)
        self._evaluation.Trace(test_input.EvalBatches().element_spec)

    def begin(self, params_text: str) -> None:
        """Writes what the directory must hold before the first step."""
        self._directory.write_params(params_text)
        keep_vocabulary(self._directory.path, self._train_input)
        self._log(describe_run(self._task))
        # Killed from here on, the run needs the other run's checkpoint no more.
        has_spikes = self._task.params.train.loss_spike_factor is not None
        if self._takes_first_values or (has_spikes and self._restored is None):
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
            factor = self._task.params.train.loss_spike_factor
            spikes = LossSpikes(factor, read_metrics(self._directory.path))
            profiler = self._profiler(profile_step, metrics_log)
            watchers = _Watchers(
                metrics_log, saver, stops, evaluations, spikes, profiler
            )
            last = self._steps(watchers)
            if evaluations.best.is_over:
                self._log(f"Stopped after step {last}: {evaluations.best.reason}")
            metrics = {} if stops.asked_by else evaluations.evaluate(last)
            if stops.asked_by:
                self._log(
                    f"Stopped by {stops.asked_by} after step {last}, which is saved. "
                    "The same command goes on from there."
                )
        report_end(self._directory, self._log)
        return metrics

    def roll_back(self, spike: LossSpikeError) -> None:
        """Goes back to the last checkpoint, to leave out the batches since.

        Raises:
            FloatingPointError: if the run went back to it too often.
        """
        start = self._checkpointer.restore()
        assert start is not None
        largest = self._task.params.train.max_rollbacks
        if self._skipped_batches.num_after(start) >= largest:
            raise FloatingPointError(
                f"The loss must have no spikes; {spike}. The run went back to "
                f"step {start} {largest} times, as task.train.max_rollbacks says. "
                "Lower task.train.learning_rate, or raise task.train.loss_spike_factor "
                "or max_rollbacks, and start again to go on from there."
            ) from spike
        self._skipped_batches.add(start, spike.step - start)
        self._start = start
        self._log(f"Back to step {start}, for {spike}. The batches since are left out.")

    def _steps(self, watchers: _Watchers) -> int:
        """Trains, saves and evaluates on the way; returns the last step's number."""
        p, n = self._task.params.train, self._start
        stops, evaluations = watchers.stops, watchers.evaluations
        best = evaluations.best
        if n < self._max_steps and evaluations.is_missing(n):
            evaluations.evaluate(n)
        batches = self._skipped_batches.batches(self._place.batches, n)
        examples = self._train_input.params.batch_size
        with Progress(self._max_steps, examples, n) as progress:
            while n < self._max_steps and not (stops.asked_by or best.is_over):
                batch = next(batches, None)
                if batch is None:
                    self._save(n, watchers)
                    raise _ended(n, self._max_steps)
                metrics = self._trained(batch)
                n += 1
                if metrics:
                    watchers.spikes.check(n, metrics["loss"])
                if watchers.profiler:
                    watchers.profiler.after_step(n, self._step.Times)
                is_last = n == self._max_steps
                if metrics and (is_last or n % p.report_interval_steps == 0):
                    self._report(n, metrics, progress, watchers)
                every = p.histogram_interval_steps
                if every and n % every == 0:
                    variables = self._task.TrainedVariables()
                    watchers.metrics_log.write_histograms(n, "train", variables)
                if evaluations.is_due(n) and not is_last and not stops.asked_by:
                    evaluations.evaluate(n)
                # Last, so that whatever a checkpoint's step has reported is on file.
                is_end = is_last or stops.asked_by or best.is_over or best.step == n
                if is_end or n % p.save_interval_steps == 0:
                    _check_finite_state(n, self._not_finite)
                    self._save(n, watchers)
        return n

    def _report(
        self,
        step: int,
        metrics: dict[str, float],
        progress: Progress,
        watchers: _Watchers,
    ) -> None:
        devices = self._task.pipeline.devices
        busy = stage_utilisation(devices, self._step.Times())
        progress.report(step, metrics["loss"], busy)
        watchers.metrics_log.write(step, "train", metrics)
        watchers.spikes.add(metrics["loss"])

    def _save(self, step: int, watchers: _Watchers) -> None:
        self._place.note(self._skipped_batches.position(step))
        watchers.saver.save(step, watchers.evaluations.best.step)

    def _profiler(
        self, step: int | None, metrics_log: MetricsLog
    ) -> StepProfiler | None:
        if step is None:
            return None
        return StepProfiler(
            self._task.pipeline,
            step,
            self._start,
            self._directory,
            metrics_log,
            self._log,
        )

    def _trained(self, batch: NestedMap) -> dict[str, float]:
        """Trains on a batch; returns no metrics if the step was skipped."""
        try:
            metrics = _means(self._step(batch))
        except FloatingPointError as error:
            if not self._skipped_steps.may_skip():
                raise FloatingPointError(f"{error} {_NOT_FINITE}") from error
            self._step.Skip()
            self._log(f"Skipped a step. {error}")
            return {}
        self._skipped_steps.add_finite()
        return metrics

    def _check_restored(self) -> None:
        if self._start > self._max_steps:
            raise ValueError(
                "max_steps must not lie before the newest checkpoint, of step "
                f"{self._start} in {self._directory.path}; got {self._max_steps}. "
                "Raise --max_steps or use another --logdir."
            )
        if self._restored is not None:
            check_vocabulary(self._directory.path, self._train_input)


def _means(metrics: NestedMap) -> dict[str, float]:
    return {name: float(mean) for name, (mean, _) in metrics.items()}


def _ended(step: int, max_steps: int) -> ValueError:
    return ValueError(
        f"TrainBatches must give a batch for each of {max_steps} steps; it ended after "
        f"step {step}, which is saved. Repeat the data, or lower --max_steps."
    )


_NOT_FINITE = (
    "The last checkpoint is kept. Where the mini-batch itself has them, mend the data, "
    "or skip such steps by task.train.max_skipped_steps; else lower "
    "task.train.learning_rate or set task.train.clip_gradient_norm_to_value. Start "
    "again to go on."
)


def _check_finite_state(step: int, not_finite: NotFinite) -> None:
    """Keeps checkpoints that can't be gone on from out of the directory."""
    wrong = not_finite.names()
    if wrong:
        raise FloatingPointError(
            f"Variables must stay finite; after step {step} {len(wrong)} are not, the "
            f"first of them {wrong[0]}. {_NOT_FINITE}"
        )
