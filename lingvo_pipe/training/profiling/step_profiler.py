"""A profiler of one step of a training run."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD, Kind, Schedule
from lingvo_pipe.pipeline.simulation.timeline import Timeline, steps_ahead
from lingvo_pipe.training.profiling import step_profile
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep

# Calls before the profiled one, each of one or several steps. The first call warms up
# and does not count. The prediction needs one more, and uses at most the last few.
_MIN_BEFORE = 2
_MAX_USED = 5


def check_profile_step(step: int, max_steps: int) -> None:
    """Raises ValueError if no run to `max_steps` can profile the step."""
    if not _MIN_BEFORE < step <= max_steps:
        raise UserValueError(
            path="--profile_step",
            expected=f"a step from {_MIN_BEFORE + 1} to max_steps, {max_steps}, since "
            "the first step of a run warms up and the prediction needs the next",
            got=step,
        )


@dataclass(eq=False)
class StepProfiler:
    """A profiler of step `step`, which also predicts the step from earlier steps.

    If a call runs several steps, the profiler profiles all steps of one call: the first
    call that ends at or after `step` and has enough calls before it. `start` is the
    number of steps trained before this run.
    """

    pipeline: PipeliningLayer
    step: int
    start: int
    directory: RunDirectory
    metrics_log: MetricsLog
    log: Callable[[str], None]
    planned: step_profile.PlannedStep | None = None

    def __post_init__(self) -> None:
        self._watch: MemoryWatch | None = None
        self._num_calls = 0
        self._ran: deque[tuple[Schedule, list[np.ndarray]]]
        self._ran = deque(maxlen=_MAX_USED + 1)
        first = self.start + _MIN_BEFORE + 1
        self._is_done = self.step < first
        if self._is_done:
            self.log(
                f"Step {self.step} is not profiled: this run resumes after step "
                f"{self.start}, and the first step that it can profile is {first}."
            )

    def after_step(self, step: int, trained: TrainStep | SeveralSteps) -> None:
        """Records the times of a finished call, whose last step is `step`.

        The first call is not recorded, nor are calls after the one to profile. That one
        is compared with a prediction from the calls before it.
        """
        self._num_calls += 1
        if self._is_done:
            return
        peaks = self._peaks(trained)
        if self._num_calls < _MIN_BEFORE:
            return
        self._ran.append((trained.schedule, trained.Times()))
        if step >= self.step and len(self._ran) > 1:
            self._is_done = True
            self._profile(step, peaks)

    def _peaks(
        self, trained: TrainStep | SeveralSteps
    ) -> list[step_profile.MemoryPeak]:
        if self.planned is None:
            return []
        if self._watch is None:
            state = trained.State().values()
            self._watch = MemoryWatch(self._all_devices(), state)
        return self._watch.peaks()

    def finish(self) -> None:
        """Logs why no step was profiled, if none was. Call it after the last step."""
        if not self._is_done:
            self.log(
                f"Step {self.step} is not profiled: the first call of a run warms up, "
                "the prediction needs the next, and this run made only "
                f"{self._num_calls}. Lower task.train.steps_per_loop, the number of "
                "steps in a call, or --profile_step."
            )

    def _profile(self, step: int, peaks: Sequence[step_profile.MemoryPeak]) -> None:
        try:
            *before, shards = [step_profile.measured_shards(*ran) for ran in self._ran]
        except ValueError as error:  # The machine's clock was set meanwhile.
            self.log(f"Step {step} is not profiled: {error}")
            return
        slowest = max(range(len(shards)), key=lambda i: shards[i].step_seconds)
        measured = shards[slowest]
        predicted = step_profile.predict(
            [call[slowest] for call in before], measured.schedule
        )
        notes = self._notes(len(before), shards, slowest)
        planned = self.planned
        if planned is not None and planned.timeline.schedule != measured.schedule:
            planned = None  # The plan is for one step, and a call may run several.
        profile = step_profile.StepProfile(
            step, predicted, measured, notes, planned, peaks
        )
        folder = self.directory.profile_path
        profile.write(folder)
        self.metrics_log.write_page(
            step, "train", "pipeline", profile.image, profile.text()
        )
        self.log(f"{profile.line()}; see {folder}/step-{step}.*")

    def _notes(
        self, num_before: int, shards: Sequence[Timeline], shard: int
    ) -> list[str]:
        before = "the call before" if num_before == 1 else f"{num_before} calls before"
        devices = self._devices(shard)
        specs = [tf.DeviceSpec.from_string(name) for name in devices]
        notes = [
            "Predicted: the schedule simulated with the median costs of operations and "
            f"messages in {before}.",
            "A step lasts from its first operation's start to its last one's end. "
            "Reading the batch is not part of it, nor is updating the weights, unless "
            "the schedule has updates.",
            *(f"Device {i} is {name}." for i, name in enumerate(devices)),
        ]
        if any(spec.device_type == "GPU" for spec in specs):
            notes.append(
                "A GPU's times are when it received the work; it may have done the "
                "work later."
            )
        if len({(spec.job, spec.task) for spec in specs}) > 1:
            notes.append(
                "Times are by each machine's own clock: as far as clocks differ, "
                "messages seem faster in one direction and slower in the other."
            )
        if Kind.UPDATE in shards[shard].schedule.kinds:
            notes += [
                f"Stage {k} was at most {num} steps ahead of stage {k + 1}; "
                f"{MAX_STEPS_AHEAD} are allowed, and 0 are usual for a slower stage."
                for k, num in steps_ahead(shards[shard]).items()
            ]
        if len(shards) > 1:
            other_shards = ", ".join(
                f"shard {i} {timeline.step_seconds * 1e3:.1f} ms"
                for i, timeline in enumerate(shards)
                if i != shard
            )
            notes.append(
                f"Shown is the slowest batch shard, {shard}. "
                f"The others: {other_shards}."
            )
        return notes

    def _all_devices(self) -> list[str]:
        spec = self.pipeline.spec
        first_shards = range(
            0, spec.layout.num_batch_shards, spec.layout.shards_per_replica
        )
        return [name for shard in first_shards for name in self._devices(shard)]

    def _devices(self, shard: int) -> list[str]:
        spec, owners = self.pipeline.spec, self.pipeline.schedule.device_of_stage()
        devices = spec.layout.replicas[shard // spec.layout.shards_per_replica]
        names = {owners[k]: name for k, name in enumerate(devices)}
        return [names[device] for device in range(len(names))]
