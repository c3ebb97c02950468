"""Ways to train a model on this machine's CPU devices, predicted and measured.

The speed of a machine changes within minutes; so each round times the cells again, and
ratios are formed within a round:

    round 1    cells timed | way 1: predicted, measured | way 2: ... | ...
    round 2    cells timed | ...
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import model_registry
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.quantities import bytes_text, seconds_text
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.splitting.cell_costs import BACKWARD_PER_FORWARD
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.traced_model import ModelTracer, costs_by_rows
from lingvo_pipe.planner.measured.calibration import available_memory, calibrated_device
from lingvo_pipe.planner.measured.measured_contention import measured_contention
from lingvo_pipe.planner.measured.measured_models import MeasuredModels
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from lingvo_pipe.training.profiling.memory_peaks import MemoryWatch
from lingvo_pipe.training.step.train_step import TrainStep

_STEPS = 5  # Steps of a way in each round; the first one does not count.
_ENOUGH_SECONDS = 10.0  # Of these steps, at least two, no more begin after this time.
# To choose the number of rows: operations per second of two cores, roughly, and the
# seconds that a step should take, and may take at most.
_SPEED = 5e10
_SHORT, _LONG = 1.0, 60.0
_MAX_MEMORY = 0.5  # Fraction of the machine's memory.


def ways(num_micro_batches: Sequence[int]) -> list[Candidate]:
    """Returns ways on one and on two devices, for these numbers of micro-batches."""
    variants = ("gpipe", "always"), ("gpipe", "never"), ("1f1b", "never")
    return [
        Candidate(1, num_devices, 1, number, schedule, recompute)
        for num_devices in (1, 2)
        for number in num_micro_batches
        for schedule, recompute in variants
    ]


class Figures(NamedTuple):
    """Predictions and measurements of a model.

    Attributes:
        num_rows: the rows of a mini-batch.
        candidates: the ways.
        numbers: `[rounds, ways, 2, 2]`, predicted and measured; seconds and bytes.
    """

    num_rows: int
    candidates: Sequence[Candidate]
    numbers: np.ndarray

    @property
    def medians(self) -> np.ndarray:
        """`[ways, 2, 2]`."""
        return np.median(self.numbers, axis=0)

    @property
    def errors(self) -> np.ndarray:
        """`[ways, 2]`: predicted over measured, less 1."""
        ratios = self.numbers[:, :, 0] / self.numbers[:, :, 1] - 1
        return np.median(ratios, axis=0)

    @property
    def drifts(self) -> np.ndarray:
        """`[rounds - 1, ways]`: a round's measured time over the last one's, less 1."""
        measured = self.numbers[:, :, 1, 0]
        return measured[1:] / measured[:-1] - 1

    @property
    def chosen(self) -> int:
        """The way that is fastest by the predictions."""
        return int(np.argmin(self.medians[:, 0, 0]))

    @property
    def behind(self) -> float:
        """The chosen way's time over the fastest one's, less 1."""
        measured = self.numbers[:, :, 1, 0]
        best = np.argmin(self.medians[:, 1, 0])
        return float(np.median(measured[:, self.chosen] / measured[:, best] - 1))


def measure_ways(
    name: str,
    override: str,
    num_rows: int | None,
    candidates: Sequence[Candidate],
    num_rounds: int,
    log: Callable[[str], None],
) -> Figures:
    """Trains a registered model on synthetic batches in all ways.

    Without a number of rows, takes as many as train in about a second. Raises
    UserValueError if the planner cannot model it, or it needs too much memory or time.
    """
    params = model_registry.GetParams(name, "Train")
    params.FromText(override, separator=";")
    devices = initialize_devices(2)
    spec = params.input.Instantiate().element_spec
    tracer = ModelTracer(params.task, spec, devices[0])
    rows = num_rows or _fitting_rows(tracer, params.input.batch_size, candidates)
    batch = tf.nest.map_structure(
        lambda s: _synthetic(tf.TensorSpec([rows, *s.shape[1:]], s.dtype)), spec
    )
    steps: list[TrainStep] = []
    numbers = np.empty([num_rounds, len(candidates), 2, 2])
    for number in range(num_rounds):
        predict = _Predictions(tracer, devices, rows)
        for i, candidate in enumerate(candidates):
            found = predict(candidate)
            if number == 0:
                steps.append(_step(params.task, found, devices))
                steps[i](batch)  # Builds the graph.
            predicted = found.step_seconds, predict.num_bytes(found)
            numbers[number, i] = predicted, _measure(steps[i], batch, devices)
        log(f"{name}: round {number + 1} of {num_rounds}")
    return Figures(rows, candidates, numbers)


class _Predictions:
    """Predictions for ways to train batches of B rows, by cells timed in this round."""

    def __init__(self, tracer: ModelTracer, devices: Sequence[str], num_rows: int):
        self._tracer, self._devices, self._num_rows = tracer, devices, num_rows
        self._models = MeasuredModels(tracer, devices[0])
        self._calibrated = calibrated_device(devices)
        self._measured = functools.cache(self._measure)

    def __call__(self, candidate: Candidate) -> Evaluation:
        num_rows = self._num_rows // candidate.num_micro_batches
        device = self._measured(num_rows)
        found = evaluate(candidate, *self._models(num_rows), device)
        assert isinstance(found, Evaluation)  # The machine has enough memory.
        return found

    def _measure(self, num_rows: int) -> DeviceModel:
        """Times the cells; returns the devices with the contention between them."""
        self._models.measure(num_rows)
        traced, (_, seconds) = self._models.trace(num_rows), self._models(num_rows)
        given = self._tracer, traced, self._devices, seconds
        return dataclasses.replace(
            self._calibrated, contention=measured_contention(*given)
        )

    def num_bytes(self, found: Evaluation) -> int:
        """Returns the bytes of all devices, which share one memory."""
        costs, _ = self._models(self._num_rows // found.candidate.num_micro_batches)
        needs = DeviceNeeds(found.candidate, costs)
        return needs.together(found.boundaries, found.timeline)


def _fitting_rows(
    tracer: ModelTracer, batch_size: int, candidates: Sequence[Candidate]
) -> int:
    """Returns rows that train in about a second, as many for each micro-batch."""
    costs_of = costs_by_rows(tracer)
    second = (1 + BACKWARD_PER_FORWARD) * sum(costs_of(1).flops) / _SPEED  # Of a row.
    rows = max(each.num_micro_batches for each in candidates)
    while 2 * rows <= batch_size and 2 * rows * second <= _SHORT:
        rows *= 2
    needs = (
        DeviceNeeds(each, costs_of(rows // each.num_micro_batches))
        for each in candidates
        if each.num_devices == 1
    )
    needed = max(sum(each.by_device([tracer.num_cells])) for each in needs)
    if needed > _MAX_MEMORY * available_memory():
        raise UserValueError(f"needs {bytes_text(needed)} for {rows} rows")
    if rows * second > _LONG:
        raise UserValueError(
            f"takes about {seconds_text(rows * second)} for {rows} rows"
        )
    return rows


def _step(task: Any, found: Evaluation, devices: Sequence[str]) -> TrainStep:
    candidate, p = found.candidate, task.Copy()
    p.pipeline.Set(devices=list(devices[: candidate.num_devices]))
    p.pipeline.Set(**candidate.params(found.boundaries))
    return TrainStep(p.Instantiate())


def _synthetic(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns numbers below 1; for integers ones, which most inputs allow."""
    if spec.dtype.is_floating:
        return tf.random.stateless_uniform(spec.shape, [0, 0], dtype=spec.dtype)
    return tf.ones(spec.shape, spec.dtype)


def _measure(step: TrainStep, batch: Any, devices: Sequence[str]) -> tuple[float, int]:
    """Returns the median time of steps, and the memory of the last one in bytes."""
    seconds: list[float] = []
    watch = MemoryWatch(devices, step.State().values())
    watch.peaks()
    while len(seconds) < 2 or (
        len(seconds) < _STEPS and sum(seconds) < _ENOUGH_SECONDS
    ):
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
        (peak,) = watch.peaks()
    return median(seconds[1:]), peak.num_bytes
