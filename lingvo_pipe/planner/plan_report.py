"""What a search has found, as text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.evaluation import Evaluated
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.time_parts import why_slower
from lingvo_pipe.planner.too_large import TooLarge

GIB = 2**30
_MIB = 2**20
_HEADER = (
    *("step, s", "bubble", "GiB of", "R", "K", "V", "M"),
    *("schedule", "recompute", "why not"),
)
_NUM_NUMBERS = 7
_MOST_TOO_LARGE = 3


def report(found: Found, device: DeviceModel, changes: str = "") -> str:
    """A table of the fastest of each schedule and recomputation, and what fell.

    Args:
        found: something that fits.
        device: on which it would run.
        changes: see `run_flags`.
    """
    best = found.fastest[0]
    header = list(_HEADER)
    header[2] = f"GiB of {device.usable / GIB:.1f}"
    rows = [header, *(_row(each, best) for each in found.fastest)]
    lines = [
        *_columns(rows),
        "",
        "Shown are the fastest of each schedule and recomputation, with the most that "
        "a device needs, and what takes them longer than the first. R replicas of K "
        "devices with V stages each share M micro-batches.",
        f"{found.num_slower:,} more are slower.",
        *_too_large_text(found.too_large, device),
        "",
        "To run the first:",
        "",
        *run_flags(best, changes),
    ]
    return "\n".join(lines)


def run_flags(best: Evaluated, changes: str = "") -> list[str]:
    """The trainer's flags that run it.

    Args:
        best: what is run.
        changes: of the model's params with which it was planned.
    """
    candidate = best.candidate
    number = candidate.num_replicas * candidate.num_devices
    override = candidate.override(best.ends)
    if changes:
        override = f"{changes.rstrip('; ')}; {override}"
    quoted = shlex.quote(override)
    return [f"--devices={number}", f"--model_params_override={quoted}"]


def gib(num_bytes: float) -> str:
    """Bytes as text, in GiB with three digits or what is before the point."""
    value = num_bytes / GIB
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def amount(num_bytes: float) -> str:
    """Bytes as text with their unit: MiB below a tenth of a GiB."""
    if num_bytes < GIB / 10:
        return f"{num_bytes / _MIB:.3g} MiB"
    return f"{gib(num_bytes)} GiB"


def needed_text(too_large: TooLarge) -> str:
    """What a device would need."""
    least = "at least " if too_large.is_bound else ""
    return f"{least}{amount(too_large.needed)}"


def _row(each: Evaluated, best: Evaluated) -> list[str]:
    c = each.candidate
    return [
        f"{each.step_seconds:.4g}",
        f"{each.timeline.bubble_fraction:.1%}",
        gib(max(each.bytes_by_device)),
        *map(str, (c.num_replicas, c.num_devices, c.stages_per_device)),
        str(c.num_micro_batches),
        c.schedule,
        c.recompute,
        "" if each is best else why_slower(each, best),
    ]


def _too_large_text(too_large: Sequence[TooLarge], device: DeviceModel) -> list[str]:
    if not too_large:
        return []
    return [
        f"{len(too_large):,} of those looked at don't fit, such as:",
        *(
            f"  {name_of(each.candidate)}: a device would need {needed_text(each)}"
            for each in too_large[:_MOST_TOO_LARGE]
        ),
    ]


def name_of(candidate: Candidate) -> str:
    """In a line."""
    replicas = f"{candidate.num_replicas} x " if candidate.num_replicas > 1 else ""
    return (
        f"{replicas}K={candidate.num_devices} M={candidate.num_micro_batches} "
        f"{candidate.schedule}, recompute={candidate.recompute}"
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if i < _NUM_NUMBERS else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
