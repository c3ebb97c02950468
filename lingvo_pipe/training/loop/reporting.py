"""Reports on trained steps: metrics, progress, histograms and profiles."""

from __future__ import annotations

from collections.abc import Iterable

from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.progress import Progress, stage_utilisation
from lingvo_pipe.training.stability.loss_spikes import LossSpikes
from lingvo_pipe.training.step.step_loop import StepLoop
from lingvo_pipe.training.step.train_step import TrainStep


class StepReports:
    """Reports on steps at the intervals in the params, and checks for loss spikes."""

    def __init__(
        self,
        step: TrainStep | StepLoop,
        metrics_log: MetricsLog,
        spikes: LossSpikes,
        profiler: StepProfiler | None,
    ):
        self._params = step.task.params.train
        self._step, self._metrics_log = step, metrics_log
        self._spikes, self._profiler = spikes, profiler

    def add(
        self, step: int, all_metrics: Iterable[dict[str, float]], progress: Progress
    ) -> None:
        """Reports on the steps of one call, and shows the last reported one.

        Args:
            step: number of steps trained before the call.
            all_metrics: metrics of each step, empty for a skipped step.
            progress: shows the last reported step.

        Raises:
            LossSpikeError: if a step's loss is a spike.
        """
        p, n, shown = self._params, step, None
        for n, metrics in enumerate(all_metrics, step + 1):
            if not metrics:
                continue
            self._spikes.check(n, metrics["loss"])
            if n == p.max_steps or n % p.report_interval_steps == 0:
                self._metrics_log.write(n, "train", metrics)
                self._spikes.add(metrics["loss"])
                shown = n, metrics["loss"]
        if shown:
            replicas = self._step.task.pipeline.replicas
            devices = [name for own in replicas for name in own]
            progress.report(*shown, stage_utilisation(devices, self._step.Times()))
        if self._profiler:
            self._profiler.after_step(n, self._step)
        interval = p.histogram_interval_steps
        if interval and n % interval == 0:
            variables = self._step.task.TrainedVariables()
            self._metrics_log.write_histograms(n, "train", variables)

    def finish(self) -> None:
        """Ends the reports after the last step."""
        if self._profiler:
            self._profiler.finish()
