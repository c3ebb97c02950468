"""Timed training steps, from which times of cells that run alone are corrected."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.flops_time_model import update_seconds
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.planner.search.correction import (
    Correction,
    InStep,
    allocator_loss,
    correction,
    in_step,
)
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch
from lingvo_pipe.training.profiling.step_profile import measured_timeline
from lingvo_pipe.training.step.train_step import TrainStep

# Short steps run often; the first one does not count.
_MIN_STEPS, _MIN_SECONDS = 5, 2.0
_ENOUGH_SECONDS = 10.0  # Of two steps or more.
_TINY = 1e-9  # A learning rate.
# Params of a pipeline that are unset, since the real step's plan may contradict them.
_NONE = (
    *("memory_limit", "micro_batch_size", "num_batch_shards", "offload"),
    *("cell_costs", "input_shapes", "input_dtypes"),
)
# Recomputation policies of the real step. The first one that fits is used.
_RECOMPUTE = "never", "always"


class RealStep:
    """A training step on K devices, built once and timed often.

    Attributes:
        seconds: times of steps since the last `take`, `take_total` or `forget_times`.

    Raises:
        tf.errors.OpError: if the step does not run, such as for lack of memory.
        FloatingPointError: if the step's loss is not finite.
    """

    def __init__(
        self,
        tracer: ModelTracer,
        devices: Sequence[str],
        num_rows: int,
        planned: Evaluation,
    ):
        self.planned, self.num_rows = planned, num_rows
        p = tracer.task_params.Copy()
        p.train.learning_rate = _TINY  # No loss overflows.
        p.pipeline.Set(
            devices=list(devices),
            **dict.fromkeys(_NONE),
            **planned.candidate.params(planned.boundaries),
        )
        self._step = TrainStep(p.Instantiate())
        size = num_rows * planned.candidate.num_micro_batches
        self._batch = synthetic_batch(tracer.batch_spec, size)
        self._step(self._batch)  # Builds the graph.
        self._watch = MemoryWatch(devices, self._step.State().values())
        self._num_bytes = 0
        self._memories: list[Sequence[int]] = []  # The devices of each memory.
        self.seconds: list[float] = []
        self._timelines: list[Timeline] = []

    def run_in_a_row(self) -> None:
        """Times steps until there are enough for a median, and measures their memory.

        The peak of the bytes differs from step to step by a tenth, because it depends
        on the memory that the step before has freed. So the largest peak is kept.
        """
        self.forget_times()
        self._num_bytes = 0
        while not is_enough(self.seconds):
            self._watch.peaks()
            self.run()
            peaks = self._watch.peaks()
            self._num_bytes = max(self._num_bytes, sum(x.num_bytes for x in peaks))
            self._memories = [peak.devices for peak in peaks]

    def run(self) -> None:
        """Times a step."""
        start = time.perf_counter()
        self._step(self._batch)
        self.seconds.append(time.perf_counter() - start)
        times = self._step.Times()
        self._timelines.append(measured_timeline(self._step.schedule, times))

    def take(self, model: ModelCosts, device: DeviceModel) -> InStep:
        """Returns the medians of all steps but the first, and forgets the steps."""
        walls, timelines = self._take()
        schedule, boundaries = timelines[0].schedule, self.planned.boundaries
        devices = [device] * schedule.num_devices
        update = update_seconds(model, schedule, boundaries, 1, devices)
        return in_step(walls, timelines, update, self._loss(model))

    def take_total(self) -> tuple[float, int]:
        """Returns the median seconds and the peak bytes, and forgets the steps.

        The median leaves out the first step. The bytes are from `run_in_a_row`, and 0
        if no device's memory is known.
        """
        return median(self._take()[0]), self._num_bytes

    def forget_times(self) -> None:
        self.seconds, self._timelines = [], []

    def _take(self) -> tuple[list[float], list[Timeline]]:
        taken = self.seconds[1:], self._timelines[1:]
        self.forget_times()
        return taken

    def _loss(self, model: ModelCosts) -> float | None:
        """Returns the measured allocator loss, or None if memory is not known."""
        planned, number = self.planned, self.planned.candidate.num_devices
        if sum(map(len, self._memories)) < number:
            return None

        def predicted(loss: float) -> int:
            costs = dataclasses.replace(model, allocator_loss=loss)
            needs = DeviceNeeds(planned.candidate, costs)
            if len(self._memories) < number:  # The devices share one memory.
                return needs.together(planned.boundaries, planned.timeline)
            return sum(needs.by_device(planned.boundaries))

        return allocator_loss(self._num_bytes, predicted)


def is_enough(seconds: Sequence[float]) -> bool:
    """Returns whether there are enough timed steps for a median."""
    number, total = len(seconds), sum(seconds)
    is_long = number >= _MIN_STEPS and total >= _MIN_SECONDS
    return number >= 2 and (is_long or total >= _ENOUGH_SECONDS)


def real_step(
    tracer: ModelTracer,
    devices: Sequence[str],
    model: ModelCosts,
    alone: Sequence[CellSeconds],
    device: DeviceModel,
) -> RealStep | None:
    """Returns a training step in which each device has one stage.

    `alone` are the cells' seconds. Returns None if there are fewer cells than devices,
    if no step fits, or if a synthetic batch is invalid or makes the loss overflow.
    """
    number = len(devices)
    if number > len(alone):
        return None
    for recompute in _RECOMPUTE:
        candidate = Candidate(1, number, 1, 2 * number, "1f1b", recompute)
        planned = evaluate(candidate, model, alone, [device] * number)
        if isinstance(planned, Evaluation):
            try:
                return RealStep(tracer, devices, model.num_rows, planned)
            except (FloatingPointError, tf.errors.InvalidArgumentError):
                return None
    return None


def measured_correction(
    tracer: ModelTracer,
    devices: Sequence[str],
    model: ModelCosts,
    alone: Sequence[CellSeconds],
    device: DeviceModel,
    uses_all: bool = False,
) -> Correction | None:
    """Times steps on all devices and on one device, and returns the correction.

    If `uses_all`, a step on one device is timed only if no step runs on all devices.
    `alone` are the cells' seconds. Returns None if neither step runs.

    Raises:
        tf.errors.OpError: if one of the steps does not run.
    """

    def timed_step(number: int) -> InStep | None:
        step = real_step(tracer, devices[:number], model, alone, device)
        if step is None:
            return None
        step.run_in_a_row()
        return step.take(model, device)

    on_all = timed_step(len(devices)) if len(devices) > 1 else None
    gc.collect()  # Frees the weights.
    on_one = None if uses_all and on_all else timed_step(1)
    gc.collect()
    return correction(alone, on_one, on_all, len(devices))


def synthetic_batch(spec: NestedMap, num_rows: int) -> Any:
    """Returns a batch that most models accept: random floats below 1, and ones."""

    def synthetic(tensor_spec: tf.TensorSpec) -> tf.Tensor:
        shape, dtype = [num_rows, *tensor_spec.shape[1:]], tensor_spec.dtype
        if dtype.is_floating:
            return tf.random.stateless_uniform(shape, [0, 0], dtype=dtype)
        return tf.ones(shape, dtype)

    return tf.nest.map_structure(synthetic, spec)
