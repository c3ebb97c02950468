"""The exchange of lines between a worker and the process that measures.

A worker writes a line when it is ready for a turn, and runs the turn when it reads a
line. So only one worker computes at a time. A worker's last line is a `Report` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from tools.benchmarks.configuration import Configuration


@dataclasses.dataclass(frozen=True)
class Request:
    """A request to time steps of a configuration, and to measure memory if asked."""

    configuration: Configuration
    num_steps: int
    with_peak: bool
    cores: tuple[int, ...]  # One per device if there are enough.

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields = json.loads(text)
        fields["configuration"] = Configuration.from_dict(fields["configuration"])
        return cls(**(fields | {"cores": tuple(fields["cores"])}))


@dataclasses.dataclass(frozen=True)
class Report:
    """The measurements of a configuration.

    Peaks count weights, gradients and stash, and are None unless requested. Stages that
    share a device count as one. Prediction errors are relative errors of predicted step
    times. `bytes_by_shapes` is the number of bytes that processes send each other in a
    step, computed from the shapes of activations and of the mini-batch. `sent_bytes`
    are the measured bytes sent over the loopback interface in each step.
    """

    start_seconds: float  # Builds the pipeline and runs the first step.
    step_seconds: list[float]
    peak_bytes_by_stage: list[int] | None
    loss: float | None  # The last step's; None if the process does not compute it.
    other_cores: float  # Kept busy by other programs during steps.
    prediction_errors: list[float] = dataclasses.field(default_factory=list)
    bytes_by_shapes: int | None = None
    sent_bytes: list[int] = dataclasses.field(default_factory=list)


def to_json(message: Request | Report) -> str:
    """Returns a message as one line."""
    return json.dumps(dataclasses.asdict(message))


def merge(reports: Sequence[Report]) -> Report:
    """Merges the reports of a pipeline's processes, in the order of their stages."""
    if len(reports) == 1:
        return reports[0]
    peaks = [report.peak_bytes_by_stage or [] for report in reports]
    (loss,) = [report.loss for report in reports if report.loss is not None]
    steps = zip(*(report.step_seconds for report in reports), strict=True)
    return Report(  # PyTorch's stages predict no steps, and count no messages.
        start_seconds=max(report.start_seconds for report in reports),
        step_seconds=list(map(max, steps)),
        peak_bytes_by_stage=sum(peaks, []) or None,
        loss=loss,
        other_cores=sum(report.other_cores for report in reports),
    )


class Turns:
    """The object by which a worker waits for its turns and answers. One per process."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        # Lines that libraries write to standard output are not answers.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def wait(self) -> None:
        """Waits for this worker's turn, or exits if the measurement has ended."""
        self.answer("ready")
        if not sys.stdin.readline():
            sys.exit("The process that measures has ended.")

    def answer(self, line: str) -> None:
        """Writes the result of a turn."""
        print(line, file=self._answers)
