"""The table as text: Markdown, aligned. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tools.benchmarks.paper import paper_bytes_by_stage
from tools.benchmarks.rows import Row, Spread

_HEADINGS = (
    "system",
    "layers",
    "K",
    "M",
    "schedule",
    "recompute",
    "step, s",
    "speed-up",
    "bound",
    "step / PyTorch's",
    "start, s",
    "peak, MiB",
    "paper, MiB",
    "others, cores",
)
_MIB = 2**20


def format_table(rows: Sequence[Row]) -> str:
    """A line a row: medians, and in parentheses the extremes over the rounds.

    Memory is that of the device that needs most.
    """
    lines = [_HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(line, widths) for line in (_HEADINGS, rule, *lines[1:]))


def _cells(row: Row) -> tuple[str, ...]:
    configuration = row.configuration
    stages_per_device = configuration.stages_per_device
    bound = row.speedup_bound
    return (
        configuration.system,
        f"{configuration.workload.num_layers:,}",
        str(configuration.num_devices),
        str(configuration.num_micro_batches),
        configuration.schedule
        + (f", V={stages_per_device}" if stages_per_device > 1 else ""),
        configuration.recompute_text,
        _spread(row.step_seconds, 3),
        _spread(row.speedup, 2),
        "" if bound is None else f"{bound:.2f}",
        _spread(row.step_over_torch, 2),
        _spread(row.start_seconds, 1),
        _mib(row.peak_bytes_by_stage),
        _mib(paper_bytes_by_stage(configuration)),
        _spread(row.other_cores, 1),
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
