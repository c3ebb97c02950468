"""Rows of measurements, as JSON and as tables in Markdown."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lingvo_pipe.core.programs import write_output
from lingvo_pipe.core.tables import markdown_table
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report
from tools.benchmarks.rounds import Round

_MIB = 2**20
_BYTES_PER_NUMBER = 4


class Spread(NamedTuple):
    """A quantity's median and extremes, over rounds unless `Row` says otherwise."""

    median: float
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration and its measurements, which `Report` describes.

    A measurement that is not applicable is None. The speed-up is over one device.
    `step_over_torch` and `step_over_tensorflow` divide the step time by the step time
    of the best row of the other system with equal micro-batches, recomputation and
    dtype. `best_torch` is the name of PyTorch's best row. `step_over_in_process`
    divides by the step time with all stages in one process. The spreads of prediction
    errors and of sent bytes are over all steps.
    """

    configuration: Configuration
    step_seconds: Spread | None
    speedup: Spread | None
    speedup_bound: float | None
    step_over_torch: Spread | None
    best_torch: str | None
    step_over_tensorflow: Spread | None
    step_over_in_process: Spread | None
    start_seconds: Spread | None
    peak_bytes_by_stage: list[int] | None
    paper_bytes_by_stage: list[int] | None
    other_cores: Spread | None
    prediction_error: Spread | None
    bytes_by_shapes: int | None
    sent_bytes: Spread | None

    def to_dict(self) -> dict[str, Any]:
        """Returns values for JSON. Names of extremes end in `_min` and `_max`."""
        sizes = ("num_layers", "model_dim", "batch_size", "sequence_length")
        names = (
            *("num_devices", "num_stages", "num_micro_batches", "schedule"),
            *("num_blocks", "steps_per_call", "recompute", "placement"),
            *("dtype", "is_compiled"),
        )
        values = {
            "system": self.configuration.system,
            **{name: getattr(self.configuration.workload, name) for name in sizes},
            **{name: getattr(self.configuration, name) for name in names},
        }
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            values[field.name] = value
            if field.type == "Spread | None":
                for part, suffix in (("median", ""), ("min", "_min"), ("max", "_max")):
                    values[field.name + suffix] = getattr(value, part, None)
        return values


def make_rows(rounds: Sequence[Round]) -> list[Row]:
    """Returns a row for each configuration, in the order of the first round."""
    return [_row(configuration, rounds) for configuration in rounds[0]]


def _row(configuration: Configuration, rounds: Sequence[Round]) -> Row:
    reports = [measured[configuration] for measured in rounds]
    timed = [report for report in reports if report.step_seconds]
    in_process = configuration.in_process()
    torch, tensorflow = (
        _best_peer(rounds, configuration, system) for system in ("torch", "tensorflow")
    )
    speedup = _step_ratio(rounds, configuration.on_one_device(), configuration)
    return Row(
        configuration=configuration,
        step_seconds=_spread(map(_step_seconds, timed)),
        speedup=speedup,
        speedup_bound=_speedup_bound(configuration) if speedup else None,
        step_over_torch=_step_ratio(rounds, configuration, torch),
        best_torch=torch.name if torch else None,
        step_over_tensorflow=_step_ratio(rounds, configuration, tensorflow),
        step_over_in_process=_step_ratio(rounds, configuration, in_process),
        start_seconds=_spread(report.start_seconds for report in reports),
        peak_bytes_by_stage=reports[0].peak_bytes_by_stage,
        paper_bytes_by_stage=_paper_bytes_by_stage(configuration),
        other_cores=_spread(report.other_cores for report in timed),
        prediction_error=_spread(
            e for report in reports for e in report.prediction_errors
        ),
        bytes_by_shapes=reports[0].bytes_by_shapes,
        sent_bytes=_spread(n for report in reports for n in report.sent_bytes),
    )


def _step_seconds(report: Report) -> float:
    return median(report.step_seconds)


def _best_peer(
    rounds: Sequence[Round], configuration: Configuration, system: str
) -> Configuration | None:
    return min(
        (
            peer
            for peer in rounds[0]
            if peer.system == system and configuration.system == "lingvo_pipe"
            if peer.is_peer_of(configuration)
        ),
        key=lambda peer: median(_step_seconds(measured[peer]) for measured in rounds),
        default=None,
    )


def _step_ratio(
    rounds: Sequence[Round], numerator: Configuration, denominator: Configuration | None
) -> Spread | None:
    if denominator is None or numerator == denominator:
        return None
    if not {numerator, denominator} <= set(rounds[0]):
        return None
    return _spread(
        _step_seconds(r[numerator]) / _step_seconds(r[denominator]) for r in rounds
    )


def _spread(values: Iterable[float]) -> Spread | None:
    values = list(values)
    return Spread(median(values), min(values), max(values)) if values else None


def _speedup_bound(configuration: Configuration) -> float:
    """Returns GPipe's bound K·M / (M + K - 1), or K if each device has its own loss."""
    num_devices, number = configuration.num_devices, configuration.num_micro_batches
    bubble = 0 if configuration.num_blocks == num_devices else num_devices - 1
    return num_devices * number / (number + bubble)


def _paper_bytes_by_stage(configuration: Configuration) -> list[int] | None:
    """Returns the bytes of each stage according to GPipe's paper, or None.

    The bytes are weights, gradients, and activations of O(N + L/K · N/M) (arXiv
    1811.06965, 2.3). N is the stash: a stage's inputs for the whole mini-batch.
    L/K · N/M is everything that the stage's layers compute for one micro-batch during
    recomputation.
    """
    policy = configuration.schedule, configuration.recompute, configuration.dtype
    if policy != ("gpipe", "always", "float32"):
        return None
    workload, num_stages = configuration.workload, configuration.num_stages
    num_layers = workload.num_layers // num_stages
    micro_batch_size = -(-workload.batch_size // configuration.num_micro_batches)
    length, dim = workload.sequence_length, workload.model_dim
    # A token has two norms, three projections, the attention's weights and its output,
    # two residual sums (D each) and the hidden units (4·D).
    activations = length * (12 * dim + workload.num_heads * length)
    numbers = (
        2 * num_layers * sum(map(math.prod, workload.weight_shapes().values()))
        + workload.batch_size * length * dim
        + num_layers * micro_batch_size * activations
    )
    return [_BYTES_PER_NUMBER * numbers] * num_stages


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes `{"rows": [...]}`. See `write_output`."""
    text = json.dumps({"rows": [row.to_dict() for row in rows]}, indent=2)
    write_output(path, text + "\n")


def format_table(rows: Sequence[Row]) -> str:
    """Returns a table of medians and extremes. Memory is the largest device's."""
    return _table(
        {
            "system": row.configuration.system,
            **_model_cells(row),
            "placement": row.configuration.placement or "",
            "step, s": _spread_text(row.step_seconds, 3),
            "speed-up": _spread_text(row.speedup, 2),
            "bound": "" if row.speedup_bound is None else f"{row.speedup_bound:.2f}",
            "step / PyTorch's best": _spread_text(row.step_over_torch, 2),
            "step / tf.function's": _spread_text(row.step_over_tensorflow, 2),
            "step / in-process": _spread_text(row.step_over_in_process, 2),
            "start, s": _spread_text(row.start_seconds, 1),
            "peak, MiB": _mib(row.peak_bytes_by_stage),
            "paper, MiB": _mib(row.paper_bytes_by_stage),
            "others, cores": _spread_text(row.other_cores, 1),
        }
        for row in rows
    )


def format_best_peers(rows: Sequence[Row]) -> str:
    """Returns the names of PyTorch's rows with which lingvo_pipe is compared."""
    return "\n".join(sorted({row.best_torch for row in rows if row.best_torch}))


def format_predictions(rows: Sequence[Row]) -> str:
    """Returns a table of prediction errors, or "" if no row has predicted steps."""
    errors = ((row, row.prediction_error) for row in rows)
    return _table(
        _model_cells(row)
        | {"prediction's error": f"{error.median:.1%}", "largest": f"{error.max:.1%}"}
        for row, error in errors
        if error
    )


def format_traffic(rows: Sequence[Row]) -> str:
    """Returns a table of sent bytes, or "" if no row has stages on workers."""
    return _table(
        _model_cells(row)
        | {
            "by shapes, MiB": f"{row.bytes_by_shapes / _MIB:.2f}",
            "sent, MiB": _spread_text(row.sent_bytes, 2, 1 / _MIB),
            "sent / by shapes": _spread_text(
                row.sent_bytes, 3, 1 / row.bytes_by_shapes
            ),
        }
        for row in rows
        if row.bytes_by_shapes and row.sent_bytes
    )


def _table(cells: Iterable[dict[str, str]]) -> str:
    """Returns a table of rows, each {heading: cell}, or "" if there are no rows."""
    lines = list(cells)
    rows = (list(line.values()) for line in lines)
    return "\n".join(markdown_table([list(lines[0]), *rows])) if lines else ""


def _model_cells(row: Row) -> dict[str, str]:
    configuration = row.configuration
    return {
        "layers": f"{configuration.workload.num_layers:,}",
        "K": str(configuration.num_devices),
        "M": str(configuration.num_micro_batches),
        "schedule": configuration.schedule_text,
        "recompute": configuration.recompute_text,
        "dtype": configuration.dtype,
    }


def _spread_text(spread: Spread | None, digits: int, factor: float = 1.0) -> str:
    if spread is None:
        return ""
    middle, low, high = (f"{x * factor:.{digits}f}" for x in spread)
    return middle if low == high else f"{middle} ({low}-{high})"


def _mib(bytes_by_stage: Sequence[int] | None) -> str:
    return f"{max(bytes_by_stage) / _MIB:.1f}" if bytes_by_stage else ""
