"""What a search has found, as text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from lingvo_pipe.planner.amounts import amount, seconds_text
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.evaluation import Evaluated
from lingvo_pipe.planner.resources import Resources
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.time_parts import why_slower
from lingvo_pipe.planner.too_large import TooLarge

_HEADER = (
    *("step", "idle", "needs", "R", "K", "V", "M"),
    *("schedule", "recompute", "slower mostly by"),
)
_NUM_NUMBERS, _WAY = 7, (7, 8)
_MOST_TOO_LARGE = 3


def report(found: Found, resources: Resources, changes: str = "") -> str:
    """A table of the fastest of each schedule and recomputation, and what fell.

    Args:
        found: something that fits.
        resources: on which it would run.
        changes: see `run_flags`.
    """
    best, usable = found.fastest[0], resources.usable
    lines = [
        *_columns([_HEADER, *_rows(found.fastest)]),
        "",
        "Shown are the fastest of each schedule and recomputation, and what a device",
        f"needs of its {amount(usable)}. R replicas of K devices with V stages each",
        "share M micro-batches. Idle is the part of a step, before its update, in",
        "which a device computes nothing: bubbles, waiting for messages, and what",
        "operations take beside their work.",
        f"{found.num_slower:,} more are slower.",
        *_too_large_text(found.too_large, usable),
        *_unused_text(best.candidate, resources.num_devices),
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
        override = f"{changes}; {override}"
    quoted = shlex.quote(override)
    return [f"--devices={number}", f"--model_params_override={quoted}"]


def needed_text(too_large: TooLarge) -> str:
    """What a device would need."""
    least = "at least " if too_large.is_bound else ""
    return f"{least}{amount(too_large.needed)}"


def _rows(fastest: Sequence[Evaluated]) -> list[list[str]]:
    """Of the table; schedules and recomputations that come to the same share one."""
    found: dict[tuple[str, ...], list[str]] = {}
    for each in fastest:
        row = _row(each, fastest[0])
        shared = found.setdefault(tuple(row[:_NUM_NUMBERS]), row)
        for column in _WAY:
            if row[column] not in shared[column].split(" or "):
                shared[column] += f" or {row[column]}"
    return list(found.values())


def _row(each: Evaluated, best: Evaluated) -> list[str]:
    c = each.candidate
    return [
        seconds_text(each.step_seconds),
        f"{each.timeline.bubble_fraction:.1%}",
        amount(max(each.bytes_by_device)),
        *map(str, (c.num_replicas, c.num_devices, c.stages_per_device)),
        str(c.num_micro_batches),
        c.schedule,
        c.recompute,
        "" if each is best else why_slower(each, best),
    ]


def _too_large_text(too_large: Sequence[TooLarge], usable: int) -> list[str]:
    if not too_large:
        return []
    return [
        f"{len(too_large):,} of those looked at don't fit, such as:",
        *(
            f"  {name_of(each.candidate)}: a device would need {needed_text(each)}, "
            f"{amount(each.needed - usable)} too much"
            for each in too_large[:_MOST_TOO_LARGE]
        ),
    ]


def _unused_text(best: Candidate, num_devices: int) -> list[str]:
    used = best.num_replicas * best.num_devices
    if used == num_devices:
        return []
    return [f"The first uses {used} of {num_devices} devices; the others stay idle."]


def name_of(candidate: Candidate) -> str:
    """In a line."""
    replicas = f"{candidate.num_replicas} x " if candidate.num_replicas > 1 else ""
    per_device = candidate.stages_per_device
    stages = f"V={per_device} " if per_device > 1 else ""
    return (
        f"{replicas}K={candidate.num_devices} {stages}M={candidate.num_micro_batches} "
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
