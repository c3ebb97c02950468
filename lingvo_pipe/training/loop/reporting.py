"""Reports on trained steps: metrics, progress, histograms and profiles."""

from collections.abc import Iterable
from dataclasses import dataclass

from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.progress import Progress, stage_utilization
from lingvo_pipe.training.stability.loss_spikes import LossSpikes
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep


@dataclass(frozen=True)
class StepReports:
    """Reports on steps at the intervals in the params, and checks for loss spikes."""

    step: TrainStep | SeveralSteps
    metrics_log: MetricsLog
    spikes: LossSpikes
    profiler: StepProfiler | None

    def add(
        self, step: int, all_metrics: Iterable[dict[str, float]], progress: Progress
    ) -> None:
        """Reports on one call's steps after `step`; LossSpikeError for a spike."""
        p, n, shown = self.step.task.params.train, step, None
        for n, metrics in enumerate(all_metrics, step + 1):
            if not metrics:
                continue
            self.spikes.check(n, metrics["loss"])
            if n == p.max_steps or n % p.report_interval_steps == 0:
                self.metrics_log.write(n, "train", metrics)
                self.spikes.add(metrics["loss"])
                shown = n, metrics["loss"]
        if shown:
            progress.report(*shown, self.utilization())
        if self.profiler:
            self.profiler.after_step(n, self.step)
        interval = p.histogram_interval_steps
        if interval and n % interval == 0:
            variables = self.step.task.TrainedVariables()
            self.metrics_log.write_histograms(n, "train", variables)

    def utilization(self) -> float | None:
        """Returns the busy fraction of the devices' time in the last step, or None."""
        replicas, times = self.step.task.pipeline.replicas, self.step.Times()
        devices = [name for own in replicas for name in own]
        return stage_utilization(devices, times) if times else None

    def finish(self) -> None:
        """Ends the reports after the last step."""
        if self.profiler:
            self.profiler.finish()
