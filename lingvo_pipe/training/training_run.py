"""A training run, from the state that its directory holds to its last step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.background_saver import BackgroundSaver
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.batch_groups import BatchGroups
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.finite import NotFinite
from lingvo_pipe.training.init_from_checkpoint import init_from_checkpoint
from lingvo_pipe.training.input_place import InputPlace
from lingvo_pipe.training.loss_spikes import LossSpikeError, LossSpikes
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.planned_step import PlannedStep
from lingvo_pipe.training.progress import Progress
from lingvo_pipe.training.report.html_report import report_end
from lingvo_pipe.training.run_description import describe_run
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_evaluations import RunEvaluations
from lingvo_pipe.training.run_vocabulary import check_vocabulary, keep_vocabulary
from lingvo_pipe.training.skipped_batches import SkippedBatches
from lingvo_pipe.training.skipped_steps import SkippedSteps
from lingvo_pipe.training.stage_utilisation import stage_utilisation
from lingvo_pipe.training.step_loop import StepLoop
from lingvo_pipe.training.step_profiler import StepProfiler
from lingvo_pipe.training.stop_requests import StopRequests
from lingvo_pipe.training.train_step import TrainStep


@dataclass(frozen=True)
class _Watchers:
    """What goes along with the steps."""

    metrics_log: MetricsLog
    saver: BackgroundSaver
    stops: StopRequests
    evaluations: RunEvaluations
    spikes: LossSpikes
    profiler: StepProfiler | None


class TrainingRun:
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
        self._step = StepLoop(task) if p.steps_per_loop > 1 else TrainStep(task)
        self._skipped_steps = SkippedSteps(p)
        self._skipped_batches = SkippedBatches(directory.skipped_batches_path)
        self._place = InputPlace(train_input)
        state = {
            **self._step.State(),
            **self._place.state(),
            **self._skipped_steps.state(),
        }
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

    def go_on(
        self,
        test_input: Any,
        profile_step: int | None,
        stops: StopRequests,
        planned: PlannedStep | None,
    ) -> dict[str, float]:
        """Trains and evaluates; returns as `train`."""
        with (
            MetricsLog(self._directory.path, resume_step=self._start) as metrics_log,
            BackgroundSaver(self._checkpointer, self._log) as saver,
        ):
            evaluations = RunEvaluations(
                self._task,
                self._evaluation,
                test_input,
                self._directory,
                metrics_log,
                self._log,
                self._checkpointer.saved_steps(),
                is_stopping=lambda: stops.asked_by is not None,
            )
            factor = self._task.params.train.loss_spike_factor
            spikes = LossSpikes(factor, read_metrics(self._directory.path))
            profiler = self._profiler(profile_step, metrics_log, planned)
            watchers = _Watchers(
                metrics_log, saver, stops, evaluations, spikes, profiler
            )
            last = self._steps(watchers)
            if evaluations.best.is_over:
                self._log(f"Stopped after step {last}: {evaluations.best.reason}")
            metrics = {} if stops.asked_by else evaluations.evaluate(last)
            saver.wait()
            evaluations.best_on_file()()
            if stops.asked_by:
                self._log(_stopped(stops.asked_by, last, self._checkpointer))
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
                "Raise task.train.loss_spike_factor or max_rollbacks, or lower "
                "task.train.learning_rate with "
                "--allow_params_change=task.train.learning_rate, and start again to "
                "go on from there."
            ) from spike
        self._skipped_batches.leave_out(start, spike.step)
        self._start = start
        self._log(f"Back to step {start}, for {spike}. The batches since are left out.")

    def _steps(self, watchers: _Watchers) -> int:
        """Trains, saves and evaluates on the way; returns the last step's number."""
        p, n = self._task.params.train, self._start
        stops, evaluations = watchers.stops, watchers.evaluations
        best = evaluations.best
        if n < self._max_steps and evaluations.is_missing(n):
            evaluations.evaluate(n)
            evaluations.best_on_file()()
        batches = BatchGroups(self._skipped_batches.batches(self._place.batches, n))
        examples = self._train_input.params.batch_size
        with Progress(self._max_steps, examples, n) as progress:
            while n < self._max_steps and not (stops.asked_by or best.is_over):
                group = batches.next(self._num_at_once(n))
                if not group:
                    self._save(n, watchers)
                    watchers.saver.wait()
                    raise _ended(n, self._max_steps)
                self._report(n, self._trained(group), progress, watchers)
                n += len(group)
                is_last = n == self._max_steps
                if watchers.profiler:
                    watchers.profiler.after_step(n, self._step)
                every = p.histogram_interval_steps
                if every and n % every == 0:
                    variables = self._task.TrainedVariables()
                    watchers.metrics_log.write_histograms(n, "train", variables)
                if evaluations.is_due(n) and not is_last and not stops.asked_by:
                    evaluations.evaluate(n)
                # Last, so that whatever a checkpoint's step has reported is on file.
                is_end = is_last or stops.asked_by or best.is_over or best.step == n
                if is_end or n % p.save_interval_steps == 0:
                    self._check_finite(n)
                    self._save(n, watchers)
        if watchers.profiler and not stops.asked_by:
            watchers.profiler.finish()
        return n

    def _num_at_once(self, step: int) -> int:
        """How many steps after this one may be made before something else is due."""
        p = self._task.params
        intervals = (
            p.train.save_interval_steps,
            p.train.histogram_interval_steps,
            p.eval.interval_steps,
        )
        return min(
            p.train.steps_per_loop,
            self._max_steps - step,
            *(every - step % every for every in intervals if every),
        )

    def _report(
        self,
        step: int,
        all_metrics: Iterable[dict[str, float]],
        progress: Progress,
        watchers: _Watchers,
    ) -> None:
        """Reports steps after one, of one call; shows the last of those reported."""
        every, shown = self._task.params.train.report_interval_steps, None
        for n, metrics in enumerate(all_metrics, step + 1):
            if not metrics:
                continue
            watchers.spikes.check(n, metrics["loss"])
            if n == self._max_steps or n % every == 0:
                watchers.metrics_log.write(n, "train", metrics)
                watchers.spikes.add(metrics["loss"])
                shown = n, metrics["loss"]
        if shown:
            replicas = self._task.pipeline.replicas
            devices = [name for own in replicas for name in own]
            progress.report(*shown, stage_utilisation(devices, self._step.Times()))

    def _save(self, step: int, watchers: _Watchers) -> None:
        self._place.note(self._skipped_batches.position(step))
        watchers.metrics_log.sync()
        evaluations = watchers.evaluations
        watchers.saver.save(step, evaluations.best.step, evaluations.best_on_file())

    def _profiler(
        self, step: int | None, metrics_log: MetricsLog, planned: PlannedStep | None
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
            planned,
        )

    def _trained(self, group: list[NestedMap]) -> Iterator[dict[str, float]]:
        """Trains on batches; the metrics of a step that was skipped are empty."""
        try:
            for metrics in self._step.Steps(group):
                yield _means(metrics)
                self._skipped_steps.add_finite()
        except FloatingPointError as error:
            if not self._skipped_steps.may_skip():
                raise FloatingPointError(f"{error} {self._remedy()}") from error
            self._step.Skip()
            self._log(f"Skipped a step. {error}")
            yield {}

    def _check_finite(self, step: int) -> None:
        """Keeps checkpoints that can't be gone on from out of the directory."""
        wrong = self._not_finite.names()
        if wrong:
            raise FloatingPointError(
                f"Variables must stay finite; after step {step} {len(wrong)} are not, "
                f"the first of them {wrong[0]}. {self._remedy()}"
            )

    def _remedy(self) -> str:
        """What is to be done about numbers that are not finite."""
        is_saved = bool(self._checkpointer.saved_steps())
        kept = "The last checkpoint is kept." if is_saved else "None is saved yet."
        p = self._task.params.train
        num, clipping = p.max_skipped_steps, "clip_gradient_norm_to_value"
        skipping = "or skip such steps by task.train.max_skipped_steps"
        if num:
            skipping = f"or skip more in a row than task.train.max_skipped_steps, {num}"
        if p.steps_per_loop > 1:
            skipping += ", with task.train.steps_per_loop 1"
            clipping = "clip_gradient_single_norm_to_value"
        return (
            f"{kept} Where the mini-batch itself has them, mend the data, {skipping}; "
            "else lower task.train.learning_rate or set "
            f"task.train.{clipping}, and accept it by "
            "--allow_params_change=task.train.learning_rate. Start again to go on."
        )

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


def _stopped(asked_by: str, step: int, checkpointer: Checkpointer) -> str:
    if step not in checkpointer.saved_steps():
        return f"Stopped by {asked_by} before the first step; nothing is saved."
    return (
        f"Stopped by {asked_by} after step {step}, which is saved. The same command "
        "goes on from there."
    )


def _ended(step: int, max_steps: int) -> ValueError:
    return ValueError(
        f"TrainBatches must give a batch for each of {max_steps} steps; it ended after "
        f"step {step}, which is saved. Repeat the data, or lower --max_steps."
    )
