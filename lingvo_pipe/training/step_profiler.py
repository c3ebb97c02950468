"""Measures one step of a training run, and shows where its time went."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD, Kind, Schedule
from lingvo_pipe.pipeline.simulation.steps_ahead import steps_ahead
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.training.memory_peaks import MemoryWatch
from lingvo_pipe.training.metrics_log import MetricsLog
from lingvo_pipe.training.planned_step import MemoryPeak, PlannedStep
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.step_loop import StepLoop
from lingvo_pipe.training.step_profile import StepProfile, measured_parts, predict
from lingvo_pipe.training.train_step import TrainStep

# Calls, of a step each or of several: one that warms up and does not count, and one
# that the prediction is made from.
_MIN_BEFORE = 2

# The prediction is made from so many calls, or from as many as there are.
_NUM_BEFORE = 5


def check_profile_step(step: int, max_steps: int) -> None:
    """Raises ValueError if no run to `max_steps` can profile this step."""
    if not _MIN_BEFORE < step <= max_steps:
        raise ValueError(
            f"profile_step must be from {_MIN_BEFORE + 1} to max_steps, {max_steps}: "
            "the first step of a run warms up, and from the next on the profile's "
            f"prediction is made; got {step}. Change --profile_step or --max_steps."
        )


class StepProfiler:
    """Keeps the times of the steps before the one that is asked for, and profiles it.

    Where several steps run in one call, all those of a call are profiled together: of
    the first call with the step, or after it, that others can be compared with.

    Args:
        pipeline: what is trained.
        step: the number of the step that is asked for.
        start: the number of steps that were trained before this run.
        directory: of the run.
        metrics_log: of the run.
        log: takes a line of text for the user.
        planned: what was expected before any step ran, if something was.
    """

    def __init__(
        self,
        pipeline: PipeliningLayer,
        step: int,
        start: int,
        directory: RunDirectory,
        metrics_log: MetricsLog,
        log: Callable[[str], None],
        planned: PlannedStep | None = None,
    ):
        self._pipeline = pipeline
        self._step = step
        self._directory = directory
        self._metrics_log = metrics_log
        self._log = log
        self._planned = planned
        self._watch: MemoryWatch | None = None
        self._num_calls = 0
        self._ran: deque[tuple[Schedule, list[np.ndarray]]] = deque(
            maxlen=_NUM_BEFORE + 1
        )
        self._is_done = start + _MIN_BEFORE >= step
        if self._is_done:
            log(
                f"Step {step} is not profiled: this run goes on after step {start}, "
                f"and the first step that it can profile is {start + _MIN_BEFORE + 1}."
            )

    def after_step(self, step: int, trained: TrainStep | StepLoop) -> None:
        """To be called after each step, or each of the calls that make several.

        Args:
            step: its number, or the last one's.
            trained: what made it.
        """
        self._num_calls += 1
        if self._is_done:
            return
        peaks = self._peaks(trained)
        if self._num_calls < _MIN_BEFORE:
            return
        self._ran.append((trained.schedule, trained.Times()))
        if step >= self._step and len(self._ran) > 1:
            self._is_done = True
            self._profile(step, peaks)

    def _peaks(self, trained: TrainStep | StepLoop) -> list[MemoryPeak]:
        """Of memory since the call before, where that was planned."""
        if self._planned is None:
            return []
        if self._watch is None:
            state = trained.State().values()
            self._watch = MemoryWatch(self._all_devices(), state)
        return self._watch.peaks()

    def finish(self) -> None:
        """To be called after the last step: says so if nothing was profiled."""
        if not self._is_done:
            self._log(
                f"Step {self._step} is not profiled: the first call of a run warms up, "
                "from the next the prediction is made, and this run made "
                f"{self._num_calls} after which none came. Lower task.train."
                "steps_per_loop, the number of steps in a call, or --profile_step."
            )

    def _profile(self, step: int, peaks: Sequence[MemoryPeak]) -> None:
        try:
            *before, parts = [measured_parts(*ran) for ran in self._ran]
        except ValueError as error:  # The machine's clock was set meanwhile.
            self._log(f"Step {step} is not profiled: {error}")
            return
        slowest = max(range(len(parts)), key=lambda i: parts[i].step_seconds)
        measured = parts[slowest]
        predicted = predict([own[slowest] for own in before], measured.schedule)
        notes = [
            *self._notes(len(before), slowest),
            *_ahead(measured),
            *_of_parts(parts, slowest),
        ]
        planned = self._planned
        if planned is not None and planned.timeline.schedule != measured.schedule:
            planned = None  # Such as of one step, where a call makes several.
        profile = StepProfile(step, predicted, measured, notes, planned, peaks)
        folder = self._directory.profile_path
        profile.write(folder)
        self._metrics_log.write_page(
            step, "train", "pipeline", profile.picture, profile.text()
        )
        self._log(f"{profile.line()}; see {folder}/step-{step}.*")

    def _notes(self, num_before: int, part: int) -> list[str]:
        """What a reader of the profile should know."""
        before = "the call before" if num_before == 1 else f"{num_before} calls before"
        devices = self._devices(part)
        specs = [tf.DeviceSpec.from_string(name) for name in devices]
        notes = [
            "Predicted: the schedule simulated with what operations and messages cost "
            f"in {before}, the median of each.",
            "A step is timed from the begin of its first operation to the end of its "
            "last; reading the batch is not part of it, nor is updating the weights "
            "where that is none of its operations.",
            *(f"Device {i} is {name}." for i, name in enumerate(devices)),
        ]
        if any(spec.device_type == "GPU" for spec in specs):
            notes.append(
                "The times of a GPU are those when work was handed to it, not those "
                "when it did the work: it may have done it later."
            )
        if len({(spec.job, spec.task) for spec in specs}) > 1:
            notes.append(
                "Times are those of each machine's own clock: as far as clocks differ, "
                "messages seem faster in one direction and slower in the other."
            )
        return notes

    def _all_devices(self) -> list[str]:
        """Names of the devices, those of a replica after those of another."""
        plan = self._pipeline.plan
        first_parts = range(0, plan.num_parts, plan.parts_per_replica)
        return [name for part in first_parts for name in self._devices(part)]

    def _devices(self, part: int) -> list[str]:
        """Names of the devices that ran a part of the mini-batch."""
        plan, homes = self._pipeline.plan, self._pipeline.schedule.device_of_stage()
        devices = plan.replicas[part // plan.parts_per_replica]
        names = {homes[k]: name for k, name in enumerate(devices)}
        return [names[device] for device in range(len(names))]


def _ahead(measured: Timeline) -> list[str]:
    """How far blocks were ahead of one another, where that can be."""
    if Kind.UPDATE not in measured.schedule.kinds:
        return []
    return [
        f"Stage {k} began steps while stage {k + 1} had {num} before them to make, at "
        f"most; {MAX_STEPS_AHEAD} are allowed, and 0 are usual for a slower stage."
        for k, num in steps_ahead(measured).items()
    ]


def _of_parts(parts: Sequence[Timeline], shown: int) -> list[str]:
    """Which part of the mini-batch is shown, and how long the others took."""
    if len(parts) == 1:
        return []
    others = ", ".join(
        f"part {i} {part.step_seconds * 1e3:.1f} ms"
        for i, part in enumerate(parts)
        if i != shown
    )
    return [
        f"Shown is part {shown} of the mini-batch, which took longest. The others: "
        f"{others}."
    ]
