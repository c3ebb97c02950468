"""A step as it was planned before any had run, beside one that was measured. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lingvo_pipe.pipeline.simulation.comparison import compare
from lingvo_pipe.pipeline.simulation.timeline import Timeline

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class MemoryPeak:
    """The most memory that was taken at a time.

    Attributes:
        devices: the numbers of those that share it, those of a replica after those of
            another.
        num_bytes: with what lives between steps.
    """

    devices: Sequence[int]
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """What was expected of a step.

    Attributes:
        timeline: of the pipeline, or of one of several that share the mini-batch.
        bytes_by_device: the most that each of its devices needs.
    """

    timeline: Timeline
    bytes_by_device: Sequence[int]

    def beside(self, measured: Timeline, peaks: Sequence[MemoryPeak]) -> str:
        """Both as a table: time, bubble and memory by device.

        Args:
            measured: of the same schedule.
            peaks: of the devices of this process.
        """
        lines = [
            "Planned from timed cells, before the first step, and measured; both "
            "without the update.",
            "",
            compare(self.timeline, measured),
            *(self._memory_line(peak) for peak in peaks),
            *self._unmeasured_lines(peaks),
        ]
        return "\n".join(lines)

    def _memory_line(self, peak: MemoryPeak) -> str:
        own = self.bytes_by_device
        planned = sum(own[device % len(own)] for device in peak.devices)
        which = f"device {peak.devices[0]}"
        if len(peak.devices) > 1:
            which = f"devices {', '.join(map(str, peak.devices))} together"
        return (
            f"memory of {which}: planned {planned / _MIB:,.1f} MiB, "
            f"measured {peak.num_bytes / _MIB:,.1f} MiB"
        )

    def _unmeasured_lines(self, peaks: Sequence[MemoryPeak]) -> list[str]:
        measured = {device for peak in peaks for device in peak.devices}
        return [
            f"memory of device {device}: planned {planned / _MIB:,.1f} MiB; it is not "
            "measured here"
            for device, planned in enumerate(self.bytes_by_device)
            if device not in measured
        ]
