"""Timelines of a training step, predicted and measured, as image, table and trace.

The prediction simulates the schedule with the costs of earlier steps. So neither the
schedule nor these costs explain a difference from the measured step. This module does
not use TensorFlow.
"""

import dataclasses
import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.bubble import compare
from lingvo_pipe.pipeline.simulation.chrome_trace import chrome_trace
from lingvo_pipe.pipeline.simulation.costs import fitted_costs, median_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline

_MIB = 2**20


def measured_timeline(schedule: Schedule, times: Sequence[np.ndarray]) -> Timeline:
    """Returns the timeline of a step that ran.

    `times` has seconds `[N, 3]` for each device: when each of its N operations began to
    wait, started and ended, as from `PipeliningLayer.ComputeGradients`.

    Raises:
        ValueError: if times contradict the schedule, because a clock was set meanwhile.
    """
    devices = enumerate(zip(schedule.columns, times, strict=True))
    timeline = Timeline.from_rows(
        (
            (device, op, *seconds)
            for device, (column, rows) in devices
            for op, seconds in zip(column, rows.tolist(), strict=True)
        ),
        schedule.block_boundaries,
    )
    if timeline.schedule != schedule:
        raise UserValueError(
            "A device's measured times contradict the schedule's order.",
            hint="Was its clock set meanwhile?",
        )
    return timeline


def measured_shards(schedule: Schedule, times: Sequence[np.ndarray]) -> list[Timeline]:
    """Returns the timeline of each batch shard of a step.

    A batch shard is a part of the mini-batch with which one replica runs the whole
    schedule. `times` has an array for each device, replica by replica. The array has
    the rows that `measured_timeline` takes, for one shard of the device after another.
    """
    size = len(schedule.columns)
    num_shards = len(times[0]) // len(schedule.columns[0])
    by_shard = [np.split(rows, num_shards) for rows in times]
    return [
        measured_timeline(schedule, shard)
        for first in range(0, len(times), size)
        for shard in zip(*by_shard[first : first + size], strict=True)
    ]


def predict(steps: Sequence[Timeline], schedule: Schedule) -> Timeline:
    """Predicts a schedule's timeline from the costs of one or more measured steps."""
    return simulate(schedule, median_costs(list(map(fitted_costs, steps))))


class MemoryPeak(NamedTuple):
    """Peak memory use in bytes, including tensors that outlast a step."""

    devices: Sequence[int]  # Devices that share the memory, numbered over all replicas.
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """The planner's timeline of a step or batch shard, and each device's peak bytes."""

    timeline: Timeline
    bytes_by_device: Sequence[int]

    def comparison(self, measured: Timeline, peaks: Sequence[MemoryPeak]) -> str:
        """Returns a table of planned and measured time, bubble and memory."""
        planned_bytes = self.bytes_by_device
        lines = [
            "Planned from timed cells, before the first step, and measured; both "
            "without the update.",
            "",
            compare(self.timeline, measured),
        ]
        for peak in peaks:
            planned = sum(
                planned_bytes[device % len(planned_bytes)] for device in peak.devices
            )
            numbers = ", ".join(map(str, peak.devices))
            is_one = len(peak.devices) == 1
            devices = f"device {numbers}" if is_one else f"devices {numbers} together"
            lines.append(
                f"memory of {devices}: planned {planned / _MIB:,.1f} MiB, "
                f"measured {peak.num_bytes / _MIB:,.1f} MiB"
            )
        measured_devices = {device for peak in peaks for device in peak.devices}
        lines += [
            f"memory of device {device}: planned {planned / _MIB:,.1f} MiB; not "
            "measured here"
            for device, planned in enumerate(planned_bytes)
            if device not in measured_devices
        ]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class StepProfile:
    """The predicted and measured timelines of one call, whose last step is `step`."""

    step: int
    predicted: Timeline
    measured: Timeline
    notes: Sequence[str] = ()
    planned: PlannedStep | None = None
    peaks: Sequence[MemoryPeak] = ()

    @property
    def name(self) -> str:
        """Name of the step or steps."""
        num = self.measured.schedule.num_steps
        if num == 1:
            return f"step {self.step}"
        return f"steps {self.step - num + 1} to {self.step}"

    def line(self) -> str:
        """Returns a line with the most important numbers."""
        predicted, measured = self.predicted, self.measured
        per_step = " each" if measured.schedule.num_steps > 1 else ""
        return (
            f"{self.name}: {_milliseconds(measured)}{per_step} in the pipeline, "
            f"predicted {_milliseconds(predicted)}; bubble "
            f"{measured.bubble_fraction:.1%}, predicted {predicted.bubble_fraction:.1%}"
        )

    def text(self) -> str:
        """Returns a title, the notes and the tables as one text."""
        together = ", all together" if self.measured.schedule.num_steps > 1 else ""
        title = f"{self.name.capitalize()}{together}: predicted, and measured."
        lines = [title, *self.notes]
        lines += ["", compare(self.predicted, self.measured)]
        if self.planned is not None:
            lines += [self.planned.comparison(self.measured, self.peaks), ""]
        return "\n".join(lines)

    @functools.cached_property
    def image(self) -> bytes:
        """PNG of both timelines, the predicted one above the measured one."""
        # Imported here: it takes half a second, and few runs draw.
        from lingvo_pipe.pipeline.simulation.draw import draw_timelines

        file = io.BytesIO()
        draw_timelines(self._timelines(), file)
        return file.getvalue()

    def write(self, directory: Path) -> None:
        """Writes step-N.png, step-N.txt and step-N.trace.json, each atomically."""
        directory.mkdir(exist_ok=True)
        contents: dict[str, str | bytes] = {
            "png": self.image,
            "txt": self.text(),
            "trace.json": chrome_trace(self._timelines()),
        }
        for ending, content in contents.items():
            write_atomically(directory / f"step-{self.step}.{ending}", content)

    def _timelines(self) -> dict[str, Timeline]:
        planned = {} if self.planned is None else {"planned": self.planned.timeline}
        return planned | {"predicted": self.predicted, "measured": self.measured}


def _milliseconds(timeline: Timeline) -> str:
    seconds = timeline.step_seconds / timeline.schedule.num_steps
    return f"{seconds * 1e3:.1f} ms"
