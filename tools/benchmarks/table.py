"""The tables as text: Markdown, aligned. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tools.benchmarks.configuration import Configuration
from tools.benchmarks.paper import paper_bytes_by_stage
from tools.benchmarks.rows import Row, Spread

_HEADINGS = (
    "system",
    "layers",
    "K",
    "M",
    "schedule",
    "recompute",
    "placement",
    "step, s",
    "speed-up",
    "bound",
    "step / PyTorch's",
    "step / in-process",
    "start, s",
    "peak, MiB",
    "paper, MiB",
    "others, cores",
)
_PREDICTION_HEADINGS = (
    "layers",
    "K",
    "M",
    "schedule",
    "recompute",
    "prediction's error",
    "largest",
)
_TRAFFIC_HEADINGS = (
    "layers",
    "K",
    "M",
    "schedule",
    "recompute",
    "by shapes, MiB",
    "sent, MiB",
    "sent / by shapes",
)
_MIB = 2**20


def format_table(rows: Sequence[Row]) -> str:
    """A line a row: medians, and in parentheses the extremes over the rounds.

    Memory is that of the device that needs most.
    """
    return _aligned([_HEADINGS, *map(_cells, rows)])


def format_predictions(rows: Sequence[Row]) -> str:
    """A line for each row whose steps were predicted; "": there is none."""
    lines = [
        (
            *_model_cells(row.configuration),
            f"{row.prediction_error.median:.1%}",
            f"{row.prediction_error.max:.1%}",
        )
        for row in rows
        if row.prediction_error
    ]
    return _aligned([_PREDICTION_HEADINGS, *lines]) if lines else ""


def format_traffic(rows: Sequence[Row]) -> str:
    """A line for each row whose stages are in several processes; "": there is none."""
    lines = [
        (
            *_model_cells(row.configuration),
            f"{row.bytes_by_shapes / _MIB:.2f}",
            _spread(_scaled(row.sent_bytes, 1 / _MIB), 2),
            _spread(_scaled(row.sent_bytes, 1 / row.bytes_by_shapes), 3),
        )
        for row in rows
        if row.bytes_by_shapes and row.sent_bytes
    ]
    return _aligned([_TRAFFIC_HEADINGS, *lines]) if lines else ""


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.min * factor, spread.max * factor)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """The headings first."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(line, widths) for line in (lines[0], rule, *lines[1:]))


def _cells(row: Row) -> tuple[str, ...]:
    configuration = row.configuration
    bound = row.speedup_bound
    return (
        configuration.system,
        *_model_cells(configuration),
        configuration.placement or "",
        _spread(row.step_seconds, 3),
        _spread(row.speedup, 2),
        "" if bound is None else f"{bound:.2f}",
        _spread(row.step_over_torch, 2),
        _spread(row.step_over_in_process, 2),
        _spread(row.start_seconds, 1),
        _mib(row.peak_bytes_by_stage),
        _mib(paper_bytes_by_stage(configuration)),
        _spread(row.other_cores, 1),
    )


def _model_cells(configuration: Configuration) -> tuple[str, ...]:
    """What is trained, and how."""
    return (
        f"{configuration.workload.num_layers:,}",
        str(configuration.num_devices),
        str(configuration.num_micro_batches),
        configuration.schedule_text,
        configuration.recompute_text,
    )


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    middle, low, high = (
        f"{x:.{digits}f}" for x in (spread.median, spread.min, spread.max)
    )
    return middle if low == high else f"{middle} ({low}-{high})"


def _mib(bytes_by_stage: Sequence[int] | None) -> str:
    return f"{max(bytes_by_stage) / _MIB:.1f}" if bytes_by_stage else ""


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
