"""Of how many micro-batches a schedule has its devices keep something."""

from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept, kept_over_time


class NumKept(NamedTuple):
    """How many (micro-batch, stage) pairs a device keeps something of.

    Attributes:
        for_recompute: those that are to be computed again.
        residuals: those of which it keeps what a BACKWARD or WEIGHT_GRADIENT needs.
    """

    for_recompute: int
    residuals: int


def num_kept(schedule: Schedule, device: int) -> list[NumKept]:
    """The numbers after each operation of a device."""
    numbers = []
    for held in kept_over_time(schedule, device):
        again = sum(n for (_, kept), n in held.items() if kept is Kept.FOR_RECOMPUTE)
        numbers.append(NumKept(again, sum(held.values()) - again))
    return numbers


def most_kept(schedule: Schedule) -> list[NumKept]:
    """The largest number of each sort on each device, not always at one moment."""
    devices = range(schedule.num_devices)
    return [
        NumKept(*map(max, zip(*num_kept(schedule, device), strict=True)))
        for device in devices
    ]
