"""From what was measured to the rows of the table. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report
from tools.benchmarks.paper import paper_bytes_by_stage
from tools.benchmarks.rounds import Round


@dataclasses.dataclass(frozen=True)
class Spread:
    """A quantity over what was measured: the rounds, if nothing else is said."""

    median: float
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration and what was measured of it; None: not applicable.

    Attributes:
        configuration: what was measured.
        step_seconds: of a step; each round counts with the median of its steps.
        speedup: how many times faster it is than one device.
        step_over_torch: its step's time over that of PyTorch's GPipe, with the same
            number of micro-batches and recomputation.
        step_over_in_process: with stages on workers, its step's time over that with all
            of them in one process.
        start_seconds: from before the pipeline is built to the end of the first step.
        peak_bytes_by_stage: weights, gradients and what is kept; stages that share a
            device count as one.
        other_cores: how many of its cores other programs kept busy during its steps.
        prediction_error: relative, of the predicted time of a step; over all steps that
            were predicted, in all rounds.
        bytes_by_shapes: what a step sends between processes.
        sent_bytes: what went over the loopback interface in a step, in all rounds.
    """

    configuration: Configuration
    step_seconds: Spread | None
    speedup: Spread | None
    step_over_torch: Spread | None
    step_over_in_process: Spread | None
    start_seconds: Spread | None
    peak_bytes_by_stage: list[int] | None
    other_cores: Spread | None
    prediction_error: Spread | None
    bytes_by_shapes: int | None
    sent_bytes: Spread | None

    @property
    def speedup_bound(self) -> float | None:
        """K·M / (M + K - 1), what GPipe's bubble leaves; None: there is no speed-up.

        K where no device waits for a gradient of another's.
        """
        if self.speedup is None:
            return None
        num_devices = self.configuration.num_devices
        if self.configuration.num_blocks == num_devices:
            return float(num_devices)
        num_micro_batches = self.configuration.num_micro_batches
        return num_devices * num_micro_batches / (num_micro_batches + num_devices - 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: medians under the quantities' names, and `_min` and `_max`."""
        configuration = self.configuration
        workload = configuration.workload
        return {
            "system": configuration.system,
            "num_layers": workload.num_layers,
            "model_dim": workload.model_dim,
            "batch_size": workload.batch_size,
            "sequence_length": workload.sequence_length,
            "num_devices": configuration.num_devices,
            "num_stages": configuration.num_stages,
            "num_micro_batches": configuration.num_micro_batches,
            "schedule": configuration.schedule,
            "num_blocks": configuration.num_blocks,
            "steps_per_call": configuration.steps_per_call,
            "recompute": configuration.recompute,
            "placement": configuration.placement,
            **_flat("step_seconds", self.step_seconds),
            **_flat("speedup", self.speedup),
            "speedup_bound": self.speedup_bound,
            **_flat("step_over_torch", self.step_over_torch),
            **_flat("step_over_in_process", self.step_over_in_process),
            **_flat("start_seconds", self.start_seconds),
            "peak_bytes_by_stage": self.peak_bytes_by_stage,
            "paper_bytes_by_stage": paper_bytes_by_stage(configuration),
            **_flat("other_cores", self.other_cores),
            **_flat("prediction_error", self.prediction_error),
            "bytes_by_shapes": self.bytes_by_shapes,
            **_flat("sent_bytes", self.sent_bytes),
        }


def make_rows(rounds: Sequence[Round]) -> list[Row]:
    """One row a configuration, in the order of the first round."""
    return [_row(configuration, rounds) for configuration in rounds[0]]


def _row(configuration: Configuration, rounds: Sequence[Round]) -> Row:
    own = [measured[configuration] for measured in rounds]
    return Row(
        configuration=configuration,
        step_seconds=_spread(_step(report) for report in own if report.step_seconds),
        speedup=_step_ratio(rounds, configuration.on_one_device(), configuration),
        step_over_torch=_step_ratio(rounds, configuration, configuration.in_torch()),
        step_over_in_process=_step_ratio(
            rounds, configuration, configuration.in_process()
        ),
        start_seconds=_spread(report.start_seconds for report in own),
        peak_bytes_by_stage=own[0].peak_bytes_by_stage,
        other_cores=_spread(
            report.other_cores for report in own if report.step_seconds
        ),
        prediction_error=_spread(
            error for report in own for error in report.prediction_errors
        ),
        bytes_by_shapes=own[0].bytes_by_shapes,
        sent_bytes=_spread(n for report in own for n in report.sent_bytes),
    )


def _step(report: Report) -> float:
    return median(report.step_seconds)


def _step_ratio(
    rounds: Sequence[Round], numerator: Configuration, denominator: Configuration
) -> Spread | None:
    """Of the steps' times, each round's own; None: of a thing to itself, or unknown."""
    if numerator == denominator or not {numerator, denominator} <= set(rounds[0]):
        return None
    return _spread(_step(r[numerator]) / _step(r[denominator]) for r in rounds)


def _spread(values: Iterable[float]) -> Spread | None:
    values = list(values)
    return Spread(median(values), min(values), max(values)) if values else None


def _flat(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        name: spread.median if spread else None,
        f"{name}_min": spread.min if spread else None,
        f"{name}_max": spread.max if spread else None,
    }
