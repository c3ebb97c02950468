"""Numbers of micro-batches in the stashes of a schedule's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    for held in stash_counts(schedule, device):
        by_kind: Counter[StashKind] = Counter()
        for (_, stash), n in held.items():
            by_kind[stash] += n
        for_recompute, offloaded = (
            by_kind[kind] for kind in (StashKind.FOR_RECOMPUTE, StashKind.OFFLOADED)
        )
        residuals = sum(by_kind.values()) - for_recompute - offloaded
        numbers.append(StashSizes(for_recompute, residuals, offloaded))
    return numbers


def stash_counts(
    schedule: Schedule, device: int
) -> Iterator[Counter[tuple[int, StashKind]]]:
    """Yields numbers of micro-batches by (stage, stash) after each operation."""
    for op, use, others in stash_moments(schedule, device):
        held = Counter(others)
        if use.write:
            held[op.stage, use.write] += 1
        yield held


def peak_stash_bytes(
    schedule: Schedule, stages: Sequence[Mapping[StashKind, int]]
) -> list[int]:
    """Returns the peak bytes of each device's stashes after operations.

    `stages` are the bytes of a micro-batch in each stash.
    """
    by_device = (
        [
            sum(num * stages[stage][kind] for (stage, kind), num in held.items() if num)
            for held in stash_counts(schedule, device)
        ]
        for device in range(schedule.num_devices)
    )
    return [max(sums, default=0) for sums in by_device]


def peak_stash_sizes(schedule: Schedule) -> list[StashSizes]:
    """Returns each device's maximum of each number, not always at one moment."""
    return [
        StashSizes(*map(max, zip(*stash_sizes(schedule, device), strict=True)))
        for device in range(schedule.num_devices)
    ]
