"""Reports on trained steps: metrics, progress, histograms and profiles."""

from dataclasses import dataclass, field

from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.progress import Progress, stage_utilization
from lingvo_pipe.training.stability.loss_spikes import LossSpikes
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep


@dataclass
class StepReports:
    """Reports on steps at the intervals in the params, and checks for loss spikes."""

    step: TrainStep | SeveralSteps
    metrics_log: MetricsLog
    spikes: LossSpikes
    profiler: StepProfiler | None
    # The last reported step and its loss, until the progress has them.
    _shown: tuple[int, float] | None = field(default=None, init=False)

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """Logs a step's metrics if a report is due. Ignores a skipped step.

        Raises:
            LossSpikeError: if the loss is a spike.
        """
        p = self.step.task.params.train
        if not metrics:
            return
        self.spikes.check(step, metrics["loss"])
        if step == p.max_steps or step % p.report_interval_steps == 0:
            self.metrics_log.write(step, "train", metrics)
            self.spikes.add(step, metrics["loss"])
            self._shown = step, metrics["loss"]

    def after_call(self, step: int, progress: Progress) -> None:
        """Shows progress after a call. Profiles and writes histograms if due."""
        if self._shown:
            progress.report(*self._shown, self.utilization())
            self._shown = None
        if self.profiler:
            self.profiler.after_step(step, self.step)
        interval = self.step.task.params.train.histogram_interval_steps
        if interval and step % interval == 0:
            variables = self.step.task.TrainedVariables()
            self.metrics_log.write_histograms(step, "train", variables)

    def utilization(self) -> float | None:
        """Returns the devices' mean busy fraction in the last call, or None."""
        replicas, times = self.step.task.pipeline.replicas, self.step.Times()
        devices = [device for replica in replicas for device in replica]
        return stage_utilization(devices, times) if times else None

    def finish(self) -> None:
        """Ends the reports after the last step."""
        if self.profiler:
            self.profiler.finish()
