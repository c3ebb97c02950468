"""The peak memory of devices that share one, such as a process's CPU devices. Pure.

device 0    |##|   |##|        bytes during operations, and between them
device 1       |###|  |###|
                 ^             most at once: no more than the sum of both peaks
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lingvo_pipe.pipeline.memory.stage_memory import OperationBytes
from lingvo_pipe.pipeline.simulation.timeline import Timeline


def joint_peak(devices: Sequence[Iterable[OperationBytes]], timeline: Timeline) -> int:
    """Returns the most bytes that all devices have at once.

    The first entry of each device is before its first operation.
    """
    now, changes = 0, list[tuple[float, int]]()
    for (first, *operations), column in zip(devices, timeline.columns, strict=True):
        now, before = now + first.during, first.after
        for used, timed in zip(operations, column, strict=True):
            changes += [
                (timed.start, used.during - before),
                (timed.end, used.after - used.during),
            ]
            before = used.after
    peak = now
    for _, change in sorted(changes):  # Of those at one time, first what becomes free.
        now += change
        peak = max(peak, now)
    return peak
