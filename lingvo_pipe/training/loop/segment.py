"""A segment of a run: the part until the run rolls back, stops or ends."""

from dataclasses import dataclass

from lingvo_pipe.core.signals import TerminationSignals
from lingvo_pipe.training.checkpoint.async_saver import AsyncSaver
from lingvo_pipe.training.eval.run_evaluations import RunEvaluations
from lingvo_pipe.training.loop.reporting import StepReports
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.progress import Progress
from lingvo_pipe.training.run.run_parts import RunPart


@dataclass(frozen=True)
class Segment:
    """The objects that a run uses until it rolls back, stops or ends."""

    metrics_log: MetricsLog
    saver: AsyncSaver
    evaluations: RunEvaluations
    reports: StepReports
    signals: TerminationSignals
    progress: Progress
    part: RunPart

    def is_stopping(self) -> bool:
        """Returns whether a signal has come that ends the run."""
        return self.signals.last_signal_name is not None
