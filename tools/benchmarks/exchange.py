"""What a worker is asked, and what it answers: each one line of JSON. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from tools.benchmarks.configuration import Configuration


@dataclasses.dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        configuration: of what.
        num_steps: how many steps to time after the first.
        with_peak: whether to find out how much memory a step needs.
        cores: the cores to run on, one a device where there are enough.
    """

    configuration: Configuration
    num_steps: int
    with_peak: bool
    cores: tuple[int, ...]

    def to_json(self) -> str:
        """On one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        configuration = Configuration.from_dict(fields["configuration"])
        cores = tuple(fields["cores"])
        return cls(**(fields | {"configuration": configuration, "cores": cores}))


@dataclasses.dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        start_seconds: from before the pipeline is built to the end of the first step.
        step_seconds: of each step after it.
        peak_bytes_by_stage: weights, gradients and what is kept for the backward
            passes, stages that share a device counting as one; None if not asked for.
        loss: in the last step; None from a process that does not compute it.
        other_cores: how many of its cores other programs kept busy during the steps.
        prediction_errors: relative errors of the predicted times of steps; empty where
            none was predicted.
        bytes_by_shapes: what a step sends between processes, by the shapes of what
            stages exchange and of the mini-batch; None: all is in one.
        sent_bytes: what went over the loopback interface in each step.
    """

    start_seconds: float
    step_seconds: list[float]
    peak_bytes_by_stage: list[int] | None
    loss: float | None
    other_cores: float
    prediction_errors: list[float] = dataclasses.field(default_factory=list)
    bytes_by_shapes: int | None = None
    sent_bytes: list[int] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        """On one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def merge(reports: Sequence[Report]) -> Report:
    """The report of a pipeline from those of its processes, first stage first."""
    peaks = [report.peak_bytes_by_stage for report in reports]
    by_shapes = [r.bytes_by_shapes for r in reports if r.bytes_by_shapes is not None]
    (loss,) = [report.loss for report in reports if report.loss is not None]
    return Report(
        start_seconds=max(report.start_seconds for report in reports),
        step_seconds=[
            max(seconds)
            for seconds in zip(*(r.step_seconds for r in reports), strict=True)
        ],
        peak_bytes_by_stage=[n for peak in peaks if peak for n in peak] or None,
        loss=loss,
        other_cores=sum(report.other_cores for report in reports),
        prediction_errors=[e for report in reports for e in report.prediction_errors],
        bytes_by_shapes=sum(by_shapes) if by_shapes else None,
        sent_bytes=[n for report in reports for n in report.sent_bytes],
    )
