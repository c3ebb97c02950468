"""Numbers of micro-batches in the stashes of a schedule's devices."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, stash_moments


class StashSizes(NamedTuple):
    """Numbers of (micro-batch, stage) pairs in a device's stashes.

    Attributes:
        for_recompute: those that wait for a RECOMPUTE.
        residuals: those that wait for a BACKWARD or WEIGHT_GRADIENT.
        offloaded: the micro-batches of both that the host holds.
    """

    for_recompute: int
    residuals: int
    offloaded: int = 0


def stash_sizes(schedule: Schedule, device: int) -> list[StashSizes]:
    """Returns the numbers after each operation of a device."""
    numbers = []
    for _, use, others in stash_moments(schedule, device):
        by_kind: Counter[StashKind] = Counter([use.write] if use.write else [])
        for (_, stash), n in others.items():
            by_kind[stash] += n
        for_recompute, offloaded = (
            by_kind[kind] for kind in (StashKind.FOR_RECOMPUTE, StashKind.OFFLOADED)
        )
        residuals = sum(by_kind.values()) - for_recompute - offloaded
        numbers.append(StashSizes(for_recompute, residuals, offloaded))
    return numbers


def peak_stash_sizes(schedule: Schedule) -> list[StashSizes]:
    """Returns each device's maximum of each number, not always at one moment."""
    return [
        StashSizes(*map(max, zip(*stash_sizes(schedule, device), strict=True)))
        for device in range(schedule.num_devices)
    ]


def peak_stashed(schedule: Schedule) -> int:
    """Returns the most stages' micro-batches that a device stashes."""
    return max(sizes.residuals for sizes in peak_stash_sizes(schedule))
