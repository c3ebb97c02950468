"""A training run, from the state in its directory to its last step.

The run writes a checkpoint

- before the first step, if it has initial values from other runs, or may roll back
- every `save_interval_steps`, after a best evaluation, and after the last step
- after the step in which `save_interval_seconds` have passed since the last one
- when a signal or a leaving worker comes, unless it may roll back (see `SaveTimes`).

It rolls back to the newest checkpoint after a loss spike (see `failure_policy`). It
stops

- after `max_steps`, or after the current step on a termination signal
- after `patience` consecutive evaluations that are not the best
- on a failure.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lingvo_pipe.core.activity import activity
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.signals import TerminationSignals, announcing_signals
from lingvo_pipe.pipeline.devices.cluster import device_kinds
from lingvo_pipe.training.checkpoint.async_saver import AsyncSaver
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.checkpoint.whole_weights import whole_variables
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.eval.run_evaluations import RunEvaluations
from lingvo_pipe.training.loop import run_lines
from lingvo_pipe.training.loop.batches import BatchGroups, InputPosition, max_group
from lingvo_pipe.training.loop.failure_policy import FailurePolicy
from lingvo_pipe.training.loop.reporting import StepReports
from lingvo_pipe.training.loop.save_times import SaveRequest, SaveTimes
from lingvo_pipe.training.loop.segment import Segment
from lingvo_pipe.training.optim.learner import dev_based_schedules
from lingvo_pipe.training.profiling.predicted_bubble import (
    predict_from_spec,
    uneven_stages,
)
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.report.html_report import report_end
from lingvo_pipe.training.run.best_evaluation import BestEvaluation
from lingvo_pipe.training.run.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.run.progress import Progress
from lingvo_pipe.training.run.resume_record import ResumeRecord
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_input import check_meaning, write_meaning
from lingvo_pipe.training.run.run_parts import RunPart, read_parts
from lingvo_pipe.training.stability.loss_spikes import LossSpikeError, LossSpikes
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.placement import describe_run, describe_train_loss
from lingvo_pipe.training.warm_start.init_from_checkpoint import init_from_checkpoint


class TrainingRun:
    """A training run. Its constructor restores the run's state, and writes nothing."""

    def __init__(
        self,
        task: BaseTask,
        train_input: Any,
        test_input: Any,
        directory: RunDirectory,
        log: Callable[[str], None],
        restart_cause: str = "",
        save_request: SaveRequest | None = None,
    ):
        p = task.params.train
        self._max_steps = p.max_steps
        self._task, self._train_input, self._test_input = task, train_input, test_input
        self._directory, self._log, self._cause = directory, log, restart_cause
        self._save_request = save_request or SaveRequest()
        self._activity, self._initial_weights = "the first batch", ""
        if not steps_in(directory.checkpoints_path):  # Else the run resumes.
            # Averages, and slots of some optimizers, start as copies of the weights.
            self._initial_weights = init_from_checkpoint(p, whole_variables(task), log)
        self._step = SeveralSteps(task) if p.steps_per_loop > 1 else TrainStep(task)
        self._failures = FailurePolicy(self._step, directory, log)
        self._parts = read_parts(directory.parts_path)
        self._device_kinds = device_kinds(
            itertools.chain.from_iterable(task.pipeline.replicas), p.offload_slots
        )
        self._record = ResumeRecord(directory, self._failures.skipped_batches)
        self._position = InputPosition(train_input)
        state = {
            **self._step.State(),
            **self._position.state(),
            **self._failures.state(),
        }
        self._checkpointer = Checkpointer(
            directory.checkpoints_path, state, p.keep_checkpoints, log
        )
        self._start, self._is_resumed = self._restore()
        batch_spec = self._position.batches(self._start).element_spec
        self._predicted = predict_from_spec(task, batch_spec)
        self._evaluation = Evaluation(task, self._step.EvalValues)
        self._trace(batch_spec)
        self._schedules = dev_based_schedules(
            self._step.learners.values(),
            task.params.eval.interval_steps,
            self._evaluation.metric_names,
        )

    def _restore(self) -> tuple[int, bool]:
        with activity("reading the checkpoint"):
            start = self._checkpointer.restore()
        if start is None:
            return 0, False
        if start > self._max_steps:
            raise UserValueError(
                path="task.train.max_steps",
                expected=f"at least {start}, the newest checkpoint's step in "
                f"{self._directory.path}",
                got=self._max_steps,
                hint="Raise --max_steps or use another --logdir.",
            )
        self._record.check({start, *self._checkpointer.unreadable})
        check_meaning(self._directory.path, self._train_input)
        return start, True

    def _trace(self, batch_spec: Any) -> None:
        # The evaluation is first, because a training step takes longer.
        with activity("tracing the evaluation"):
            self._evaluation.Trace(self._test_input.EvalBatches().element_spec)
        names = self._evaluation.metric_names
        BestEvaluation(self._task.params.eval).check_metrics(names)
        with activity("tracing a training step"):
            self._step.Trace(batch_spec)

    def start(self, params_text: str, changes: Sequence[str]) -> None:
        """Writes the run's first files, with `changes`, and logs how it starts."""
        directory, skipped = self._directory, self._failures.skipped_batches
        if self._is_resumed:
            start_line = run_lines.resumed_text(
                self._start, self._max_steps, self._parts, self._device_kinds, changes
            )
        else:
            start_line = run_lines.replaced_line(directory, skipped.total)
            skipped.clear()
        since = [f"since step {self._start}: {change}" for change in changes]
        directory.write_params(params_text, since, keeps_changes=self._is_resumed)
        write_meaning(directory.path, self._train_input, self._is_resumed)
        lines = [describe_run(self._task), describe_train_loss(self._task)]
        lines.append(self._record.test_data_warning(self._test_input))
        if self._predicted:
            lines.append(uneven_stages(self._task, self._predicted))
        for line in filter(None, [*lines, start_line]):
            self._log(line)
        may_roll_back = self._task.params.train.loss_spike_factor is not None
        if not self._is_resumed:
            # A run killed after this no longer needs the source of its initial values.
            directory.write_initial_weights(self._initial_weights)
            if self._initial_weights or may_roll_back:
                self._checkpointer.save(0)

    def train(
        self, profile_step: int | None, planned: PlannedStep | None
    ) -> dict[str, float]:
        """Trains until the run stops, and returns the last evaluation's metrics."""
        with TerminationSignals() as signals, announcing_signals(self._announce):
            while True:
                try:
                    return self._train_segment(signals, profile_step, planned)
                except LossSpikeError as spike:
                    self._directory.check_present()
                    start = self._checkpointer.roll_back()
                    self._failures.skip_batches(start, spike)
                    self._start, self._cause = start, f"The loss had a spike: {spike}."

    def _train_segment(
        self,
        signals: TerminationSignals,
        profile_step: int | None,
        planned: PlannedStep | None,
    ) -> dict[str, float]:
        """Trains from the start, or from the last roll-back, until the run stops."""
        directory, log = self._directory, self._log
        self._record.rewind(self._start)
        with (
            MetricsLog(directory.path, self._start, log) as metrics_log,
            AsyncSaver(self._checkpointer, log) as saver,
        ):
            self._save_request.is_writing = saver.is_writing
            evaluations = RunEvaluations(
                self._task,
                self._evaluation,
                self._test_input,
                directory,
                metrics_log,
                log,
                self._checkpointer,
                is_stopping=lambda: signals.last_signal_name is not None,
                schedules=self._schedules,
            )
            profiler = None
            if profile_step is not None:
                profiler = StepProfiler(
                    self._task.pipeline,
                    profile_step,
                    self._start,
                    directory,
                    metrics_log,
                    log,
                    planned,
                )
            spikes = LossSpikes(self._task.params.train, read_metrics(directory.path))
            reports = StepReports(self._step, metrics_log, spikes, profiler)
            if self._start < self._max_steps and evaluations.is_missing(self._start):
                self._evaluate(self._start, evaluations)
                evaluations.write_best()
            batch_size = self._train_input.params.batch_size
            progress = Progress(self._max_steps, batch_size, self._start)
            predicted = self._predicted and self._predicted.bubble_fraction
            part = RunPart(
                self._start,
                describe_run(self._task),
                predicted,
                device_kinds=self._device_kinds,
                train_loss=describe_train_loss(self._task),
                cause=self._cause,
            )
            segment = Segment(
                metrics_log, saver, evaluations, reports, signals, progress, part
            )
            try:
                last = self._train_steps(segment)
            except LossSpikeError:
                saver.wait()  # Without this checkpoint the run rolls back further.
                raise
            metrics = self._end(segment, last)
        report_end(directory, log)
        return metrics

    def _end(self, segment: Segment, last: int) -> dict[str, float]:
        """Ends a segment after step `last`. After a signal, there is no evaluation."""
        evaluations = segment.evaluations
        if evaluations.best.is_over:
            self._log(f"Stopped after step {last}: {evaluations.best.reason}")
        metrics = {} if segment.is_stopping() else self._evaluate(last, evaluations)
        segment.saver.wait()
        if not segment.is_stopping():
            evaluations.check_best()
        evaluations.write_best()
        if last > self._start:
            progress, part = segment.progress, segment.part
            if not part.has_stopped:  # A signal came late, or without a checkpoint.
                part.has_stopped = True
                part.write(self._directory.parts_path)
            result = run_lines.result_text(evaluations.best, self._checkpointer)
            facts = [progress.summary(), part.speed_text(), result]
            self._log(f"Trained {'; '.join(filter(None, facts))}")
        if name := segment.signals.last_signal_name:
            self._log(
                run_lines.stopped_line(name, last, self._checkpointer.intact_steps())
            )
        return metrics

    def _evaluate(self, step: int, evaluations: RunEvaluations) -> dict[str, float]:
        self._activity = f"a batch of the evaluation after step {step}"
        metrics = evaluations.evaluate(step)
        evaluations.metrics_log.sync()
        self._record.write()
        return metrics

    def _train_steps(self, segment: Segment) -> int:
        step, evaluations = self._start, segment.evaluations
        skipped = self._failures.skipped_batches
        batches = BatchGroups(skipped.batches(self._position.batches, step))
        saves = SaveTimes(self._task.params.train, self._save_request)
        is_last = self._is_last(step, segment)
        batch_size = self._train_input.params.batch_size
        with segment.progress as progress:
            while not is_last:
                self._save_request.is_saved = False
                group = batches.next(max_group(self._task.params, step))
                if problem := self._failures.input_problem(group, step):
                    self._failures.check_variables(step)
                    if not saves.only_due:
                        self._save(step, segment)
                    segment.saver.wait()
                    saved = max(self._checkpointer.intact_steps())
                    raise self._failures.with_saved_step(problem, saved)
                self._activity = f"step {step + len(group)} to end"
                with segment.part.timing(len(group), batch_size):
                    for metrics in self._failures.train(group):
                        step += 1
                        segment.reports.add(step, metrics)
                segment.reports.after_call(step, progress)
                progress.advance(step)
                is_stopped = step == self._max_steps or segment.is_stopping()
                if evaluations.is_due(step) and not is_stopped:
                    self._activity = f"a batch of the evaluation after step {step}"
                    evaluations.evaluate(step)
                is_last = self._is_last(step, segment)
                # Saved last: all reports of a checkpoint's step are written by then.
                is_best = evaluations.best.step == step
                is_over = step >= self._max_steps or evaluations.best.is_over
                is_end = is_over if saves.only_due else is_last
                if is_end or is_best or saves.is_due(step):
                    segment.part.has_stopped = is_last
                    self._failures.check_variables(step)
                    self._save(step, segment)
                    saves.restart_clock()
                    if self._save_request.is_asked:
                        segment.saver.wait()
                    self._save_request.is_saved = True
                    if self._save_request.is_asked:
                        self._save_request.wait_for_restart(segment.is_stopping)
                    is_last = self._is_last(step, segment)  # A signal may have arrived.
        if not segment.is_stopping():
            segment.reports.finish()
        return step

    def _is_last(self, step: int, segment: Segment) -> bool:
        is_over = segment.is_stopping() or segment.evaluations.best.is_over
        return step >= self._max_steps or is_over

    def _save(self, step: int, segment: Segment) -> None:
        """Writes all metrics so far to the disk, then starts to write a checkpoint."""
        self._activity = f"the checkpoint of step {step}"
        self._directory.check_present()
        segment.part.last_step = step
        segment.part.stages_busy = segment.reports.utilization()
        segment.part.write(self._directory.parts_path)
        self._position.set_batch(self._failures.skipped_batches.position(step))
        segment.metrics_log.sync()
        self._record.write()
        best = segment.evaluations.best.step
        segment.saver.save(step, best, segment.evaluations.best_writer())

    def _announce(self, signal: str) -> None:
        self._log(
            f"{signal}: waiting for {self._activity}; the run then stops, and the same "
            "command resumes it."
        )
