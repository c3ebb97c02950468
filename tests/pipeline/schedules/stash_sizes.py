"""Numbers of micro-batches in the stashes of a schedule's devices."""

from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, stash_counts


class StashSizes(NamedTuple):
    """Numbers of (micro-batch, stage) pairs in a device's stashes.

    Attributes:
        for_recompute: those that wait for a RECOMPUTE.
        residuals: those that wait for a BACKWARD or WEIGHT_GRADIENT.
    """

    for_recompute: int
    residuals: int


def stash_sizes(schedule: Schedule, device: int) -> list[StashSizes]:
    """Returns the numbers after each operation of a device."""
    numbers = []
    for held in stash_counts(schedule, device):
        for_recompute = sum(
            n for (_, stash), n in held.items() if stash is StashKind.FOR_RECOMPUTE
        )
        numbers.append(StashSizes(for_recompute, sum(held.values()) - for_recompute))
    return numbers


def peak_stash_sizes(schedule: Schedule) -> list[StashSizes]:
    """Returns each device's maximum of each number, not always at one moment."""
    return [
        StashSizes(*map(max, zip(*stash_sizes(schedule, device), strict=True)))
        for device in range(schedule.num_devices)
    ]
