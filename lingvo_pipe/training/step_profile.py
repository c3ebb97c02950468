"""A training step in time, predicted and measured: as picture, table and trace.

The prediction is the schedule simulated with what operations and messages cost in
*other* steps, those just before. So it knows nothing of the step that it is compared
with, and what differs is what the schedule and its costs don't explain. Pure but for
writing files: no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.chrome_trace import chrome_trace
from lingvo_pipe.pipeline.simulation.comparison import compare
from lingvo_pipe.pipeline.simulation.fitted_costs import fitted_costs
from lingvo_pipe.pipeline.simulation.median_costs import median_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.training.atomic_file import write_atomically
from lingvo_pipe.training.planned_step import MemoryPeak, PlannedStep


def measured_timeline(schedule: Schedule, times: Sequence[np.ndarray]) -> Timeline:
    """The timeline of a step that ran.

    Args:
        schedule: what ran.
        times: for each device `[N, 3]`, when its operations ran, in their order; as
            from `PipeliningLayer.ComputeGradients`.

    Raises:
        ValueError: if a device's times contradict themselves, as they do where its
            clock was set meanwhile.
    """
    timeline = Timeline.from_rows(
        (
            (device, op, wait_start, start, end)
            for device, (column, rows) in enumerate(
                zip(schedule.columns, times, strict=True)
            )
            for op, (wait_start, start, end) in zip(column, rows.tolist(), strict=True)
        ),
        schedule.block_ends,
    )
    if timeline.schedule != schedule:
        raise ValueError(
            "A device runs its operations in the order of the schedule; by the times "
            "that were noted they ran in another. Was its clock set meanwhile?"
        )
    return timeline


def measured_parts(schedule: Schedule, times: Sequence[np.ndarray]) -> list[Timeline]:
    """The timelines of the parts of a step, each of which ran the schedule.

    Args:
        schedule: what each ran.
        times: as of `measured_timeline`, of all devices: those of a replica after those
            of another, of a device those of its parts one after another.
    """
    size = len(schedule.columns)
    turns = len(times[0]) // len(schedule.columns[0])
    return [
        measured_timeline(
            schedule,
            [np.split(own, turns)[turn] for own in times[first : first + size]],
        )
        for first in range(0, len(times), size)
        for turn in range(turns)
    ]


def predict(steps: Sequence[Timeline], schedule: Schedule) -> Timeline:
    """What others lead to expect.

    Args:
        steps: the others, at least one, of the same stages and kinds of operations.
        schedule: what is to run.
    """
    costs = median_costs([fitted_costs(step) for step in steps])
    return simulate(schedule, costs)


@dataclasses.dataclass(frozen=True)
class StepProfile:
    """One step, or all those of one call, predicted and measured.

    Attributes:
        step: its number, or the last one's.
        predicted: as from `predict`.
        measured: of the same schedule.
        notes: what a reader of the table should know besides.
        planned: what was expected before any step ran, if something was.
        peaks: the most memory that was taken during the step.
    """

    step: int
    predicted: Timeline
    measured: Timeline
    notes: Sequence[str] = ()
    planned: PlannedStep | None = None
    peaks: Sequence[MemoryPeak] = ()

    @property
    def name(self) -> str:
        """Which steps they are."""
        num = self.measured.schedule.num_steps
        if num == 1:
            return f"step {self.step}"
        return f"steps {self.step - num + 1} to {self.step}"

    def line(self) -> str:
        """The most important, in a line."""
        predicted, measured = self.predicted, self.measured
        each = " each" if measured.schedule.num_steps > 1 else ""
        return (
            f"{self.name}: {_milliseconds(measured)}{each} in the pipeline, predicted "
            f"{_milliseconds(predicted)}; bubble {measured.bubble_fraction:.1%}, "
            f"predicted {predicted.bubble_fraction:.1%}"
        )

    def text(self) -> str:
        """The notes, and the tables that `compare` makes."""
        together = ", all together" if self.measured.schedule.num_steps > 1 else ""
        title = f"{self.name.capitalize()}{together}: predicted, and measured."
        lines = [title, *self.notes]
        lines += ["", compare(self.predicted, self.measured)]
        if self.planned is not None:
            lines += [self.planned.beside(self.measured, self.peaks), ""]
        return "\n".join(lines)

    @functools.cached_property
    def picture(self) -> bytes:
        """A PNG of both timelines, the predicted one above the measured one."""
        # Imported here: it takes half a second, and few runs draw.
        from lingvo_pipe.pipeline.simulation.draw import draw_timelines

        file = io.BytesIO()
        draw_timelines(self._timelines(), file)
        return file.getvalue()

    def write(self, directory: Path) -> None:
        """Writes step-N.png, .txt and .trace.json, each whole or not at all."""
        directory.mkdir(exist_ok=True)
        contents: dict[str, str | bytes] = {
            "png": self.picture,
            "txt": self.text(),
            "trace.json": chrome_trace(self._timelines()),
        }
        for ending, content in contents.items():
            write_atomically(directory / f"step-{self.step}.{ending}", content)

    def _timelines(self) -> dict[str, Timeline]:
        planned = {} if self.planned is None else {"planned": self.planned.timeline}
        return planned | {"predicted": self.predicted, "measured": self.measured}


def _milliseconds(timeline: Timeline) -> str:
    """Of a step."""
    seconds = timeline.step_seconds / timeline.schedule.num_steps
    return f"{seconds * 1e3:.1f} ms"
