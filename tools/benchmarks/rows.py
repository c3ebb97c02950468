"""Rows of measurements, as JSON and as tables in Markdown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.tables import markdown_table
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report
from tools.benchmarks.rounds import Round

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median and the extremes of a quantity, over rounds unless stated."""

    median: float
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration and its measurements (see `Report`); None if not applicable.

    The speed-up is over one device. `step_over_torch` divides by the step time of
    PyTorch's GPipe with equal micro-batches and recomputation, and
    `step_over_in_process` by the step time with all stages in one process. Prediction
    errors and sent bytes are over all steps in all rounds.
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
        """The bound K·M / (M + K - 1) from GPipe's bubble; None without a speed-up.

        It is K if no device waits for another's gradient.
        """
        if self.speedup is None:
            return None
        num_devices = self.configuration.num_devices
        if self.configuration.num_blocks == num_devices:
            return float(num_devices)
        num_micro_batches = self.configuration.num_micro_batches
        return num_devices * num_micro_batches / (num_micro_batches + num_devices - 1)

    def to_dict(self) -> dict[str, Any]:
        """Returns values for JSON: medians by name, extremes as `_min` and `_max`."""
        configuration = self.configuration
        sizes = ("num_layers", "model_dim", "batch_size", "sequence_length")
        names = (
            *("num_devices", "num_stages", "num_micro_batches", "schedule"),
            *("num_blocks", "steps_per_call", "recompute", "placement"),
        )
        return {
            "system": configuration.system,
            **{name: getattr(configuration.workload, name) for name in sizes},
            **{name: getattr(configuration, name) for name in names},
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
    """Returns a row for each configuration, in the order of the first round."""
    return [_row(configuration, rounds) for configuration in rounds[0]]


def _row(configuration: Configuration, rounds: Sequence[Round]) -> Row:
    own = [measured[configuration] for measured in rounds]
    timed = [report for report in own if report.step_seconds]
    in_process = configuration.in_process()
    return Row(
        configuration=configuration,
        step_seconds=_spread(map(_step_seconds, timed)),
        speedup=_step_ratio(rounds, configuration.on_one_device(), configuration),
        step_over_torch=_step_ratio(rounds, configuration, configuration.in_torch()),
        step_over_in_process=_step_ratio(rounds, configuration, in_process),
        start_seconds=_spread(report.start_seconds for report in own),
        peak_bytes_by_stage=own[0].peak_bytes_by_stage,
        other_cores=_spread(report.other_cores for report in timed),
        prediction_error=_spread(e for report in own for e in report.prediction_errors),
        bytes_by_shapes=own[0].bytes_by_shapes,
        sent_bytes=_spread(n for report in own for n in report.sent_bytes),
    )


def _step_seconds(report: Report) -> float:
    return median(report.step_seconds)


def _step_ratio(
    rounds: Sequence[Round], numerator: Configuration, denominator: Configuration
) -> Spread | None:
    """Returns the ratio of step times within rounds; None if equal or not measured."""
    if numerator == denominator or not {numerator, denominator} <= set(rounds[0]):
        return None
    return _spread(
        _step_seconds(r[numerator]) / _step_seconds(r[denominator]) for r in rounds
    )


def _spread(values: Iterable[float]) -> Spread | None:
    values = list(values)
    return Spread(median(values), min(values), max(values)) if values else None


def _flat(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        name: spread.median if spread else None,
        f"{name}_min": spread.min if spread else None,
        f"{name}_max": spread.max if spread else None,
    }


def paper_bytes_by_stage(configuration: Configuration) -> list[int] | None:
    """Returns weights, gradients, and activations of O(N + L/K · N/M) for each stage.

    This is GPipe's expression (arXiv 1811.06965, 2.3). N is the stash: a stage's inputs
    for the whole mini-batch. L/K · N/M is everything that its layers compute for one
    micro-batch during recomputation. Returns None for configurations other than GPipe's
    schedule with recomputation.
    """
    if (configuration.schedule, configuration.recompute) != ("gpipe", "always"):
        return None
    workload, num_stages = configuration.workload, configuration.num_stages
    num_layers = workload.num_layers // num_stages
    micro_batch_size = -(-workload.batch_size // configuration.num_micro_batches)
    stage_bytes = (
        2 * num_layers * workload.weight_bytes
        + workload.batch_size * workload.input_bytes
        + num_layers * micro_batch_size * workload.activation_bytes
    )
    return [stage_bytes] * num_stages


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes `{"rows": [...]}` atomically."""
    text = json.dumps({"rows": [row.to_dict() for row in rows]}, indent=2)
    write_atomically(path, text + "\n")


_MODEL_HEADER = ("layers", "K", "M", "schedule", "recompute")


def format_table(rows: Sequence[Row]) -> str:
    """Returns a table of medians, with the extremes over rounds in parentheses.

    The memory is the largest device's.
    """
    header = (
        *("system", *_MODEL_HEADER, "placement", "step, s", "speed-up", "bound"),
        *("step / PyTorch's", "step / in-process", "start, s"),
        *("peak, MiB", "paper, MiB", "others, cores"),
    )
    return _table(header, [_cells(row) for row in rows])


def format_predictions(rows: Sequence[Row]) -> str:
    """Returns a table of the rows with predicted steps; "" if there are none."""
    lines = [
        (
            *_model_cells(row.configuration),
            f"{row.prediction_error.median:.1%}",
            f"{row.prediction_error.max:.1%}",
        )
        for row in rows
        if row.prediction_error
    ]
    return _table((*_MODEL_HEADER, "prediction's error", "largest"), lines)


def format_traffic(rows: Sequence[Row]) -> str:
    """Returns a table of the rows with stages on workers; "" if there are none."""
    lines = [
        (
            *_model_cells(row.configuration),
            f"{row.bytes_by_shapes / _MIB:.2f}",
            _spread_text(_scaled(row.sent_bytes, 1 / _MIB), 2),
            _spread_text(_scaled(row.sent_bytes, 1 / row.bytes_by_shapes), 3),
        )
        for row in rows
        if row.bytes_by_shapes and row.sent_bytes
    ]
    header = (*_MODEL_HEADER, "by shapes, MiB", "sent, MiB", "sent / by shapes")
    return _table(header, lines)


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_table([header, *lines])) if lines else ""


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.min * factor, spread.max * factor)


def _cells(row: Row) -> tuple[str, ...]:
    configuration = row.configuration
    bound = row.speedup_bound
    return (
        configuration.system,
        *_model_cells(configuration),
        configuration.placement or "",
        _spread_text(row.step_seconds, 3),
        _spread_text(row.speedup, 2),
        "" if bound is None else f"{bound:.2f}",
        _spread_text(row.step_over_torch, 2),
        _spread_text(row.step_over_in_process, 2),
        _spread_text(row.start_seconds, 1),
        _mib(row.peak_bytes_by_stage),
        _mib(paper_bytes_by_stage(configuration)),
        _spread_text(row.other_cores, 1),
    )


def _model_cells(configuration: Configuration) -> tuple[str, ...]:
    return (
        f"{configuration.workload.num_layers:,}",
        str(configuration.num_devices),
        str(configuration.num_micro_batches),
        configuration.schedule_text,
        configuration.recompute_text,
    )


def _spread_text(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    middle, low, high = (
        f"{x:.{digits}f}" for x in (spread.median, spread.min, spread.max)
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def _mib(bytes_by_stage: Sequence[int] | None) -> str:
    return f"{max(bytes_by_stage) / _MIB:.1f}" if bytes_by_stage else ""
