"""The peak of a memory that several devices share, such as CPU devices. Pure.

device 0    |##|   |##|        bytes during operations, and between them
device 1       |###|  |###|
                 ^             joint peak: at most the sum of both devices' peaks
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lingvo_pipe.pipeline.memory.stage_memory import OperationBytes
from lingvo_pipe.pipeline.simulation.timeline import Timeline


def joint_peak(devices: Sequence[Iterable[OperationBytes]], timeline: Timeline) -> int:
    """Returns the peak of the bytes that all devices use together.

    `devices` holds for each device its bytes before the first operation, and then the
    bytes of each of its operations. `timeline` tells when these operations run.
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
    for _, change in sorted(changes):  # At the same time, memory is freed first.
        now += change
        peak = max(peak, now)
    return peak
