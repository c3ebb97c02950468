"""Ways to train a model on this machine's CPU devices, predicted and measured.

The speed of a machine changes within seconds. So in each round, steps of all ways run
in turns with the real steps that correct predictions. Only numbers of the same round
are compared:

    round 1    cells alone | memory | real steps, way 1, ... | real steps, way 1, ...
    round 2    cells alone | memory | real steps, way 1, ... | real steps, way 1, ...

The memory of a step depends on what the previous step has freed. So to measure memory,
each step runs several times in a row.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

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
from lingvo_pipe.planner.measured.measured_models import MeasuredModels
from lingvo_pipe.planner.measured.real_steps import RealStep, is_enough, real_step
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate,
    evaluate_boundaries,
)
from lingvo_pipe.planner.search.correction import Correction, correction

# To choose the number of rows: operations per second of two cores, roughly, and the
# seconds that a step should take, and may take at most.
_SPEED = 5e10
_SHORT, _LONG = 1.0, 60.0
_MAX_MEMORY = 0.5  # Fraction of the machine's memory.


def ways(num_micro_batches: Sequence[int]) -> list[Candidate]:
    """Returns six ways to run a model for each number of micro-batches."""
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
        numbers: (predicted, measured) x (seconds, bytes), `[rounds, ways, 2, 2]`.
    """

    num_rows: int
    candidates: Sequence[Candidate]
    numbers: np.ndarray

    @property
    def medians(self) -> np.ndarray:
        """The medians of `numbers` over rounds, `[ways, 2, 2]`."""
        return np.median(self.numbers, axis=0)

    @property
    def errors(self) -> np.ndarray:
        """Medians of predicted / measured - 1, for seconds and bytes, `[ways, 2]`."""
        ratios = self.numbers[:, :, 0] / self.numbers[:, :, 1] - 1
        return np.median(ratios, axis=0)

    @property
    def drifts(self) -> np.ndarray:
        """Relative changes of measured times between rounds, `[rounds - 1, ways]`."""
        measured = self.numbers[:, :, 1, 0]
        return measured[1:] / measured[:-1] - 1

    @property
    def chosen(self) -> int:
        """The index of the way that is predicted to be the fastest."""
        return int(np.argmin(self.medians[:, 0, 0]))

    @property
    def behind(self) -> float:
        """The fraction by which the chosen way takes longer than the fastest way."""
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

    `candidates` are the ways. If `num_rows` is None, batches have as many rows as can
    be trained on in about a second.

    Raises:
        UserValueError: if the planner cannot model the model, or if the model needs too
            much memory or time, or does not run on synthetic batches.
    """
    params = model_registry.GetParams(name, "Train")
    params.FromText(override, separator=";")
    devices = initialize_devices(2)
    spec = params.input.Instantiate().element_spec
    tracer = ModelTracer(params.task, spec, devices[0])
    rows = _fitting_rows(tracer, params.input.batch_size, candidates, num_rows)
    device = calibrated_device(devices)
    sizes = {rows // candidate.num_micro_batches for candidate in candidates}
    real: dict[int, list[RealStep | None]] = {}
    trained: list[RealStep] = []
    numbers = np.empty([num_rounds, len(candidates), 2, 2])
    for number in range(num_rounds):
        models = MeasuredModels(tracer, devices[0])
        for size in sizes:
            models.measure(size)
        if number == 0:
            real = {
                size: [
                    real_step(tracer, devices[:count], *models(size), device)
                    for count in (1, 2)
                ]
                for size in sizes
            }
            trained = [
                _way(tracer, devices, rows, candidate, models, device)
                for candidate in candidates
            ]
        _run_in_turns([*itertools.chain(*real.values()), *trained])
        corrections = {
            size: _correction(steps, models, size, device)
            for size, steps in real.items()
        }
        for i, way in enumerate(trained):
            predicted = _predicted(way, models, corrections[way.num_rows], device)
            numbers[number, i] = predicted, way.take_total()
        log(f"{name}: round {number + 1} of {num_rounds}")
    return Figures(rows, candidates, numbers)


def _way(
    tracer: ModelTracer,
    devices: Sequence[str],
    num_rows: int,
    candidate: Candidate,
    models: MeasuredModels,
    device: DeviceModel,
) -> RealStep:
    size = num_rows // candidate.num_micro_batches
    planned = evaluate(candidate, *models(size), [device] * candidate.num_devices)
    assert isinstance(planned, Evaluation)  # The machine has enough memory.
    try:
        return RealStep(tracer, devices[: candidate.num_devices], size, planned)
    except (FloatingPointError, tf.errors.OpError) as error:
        raise UserValueError(f"does not run on synthetic batches: {error}") from error


def _predicted(
    way: RealStep,
    models: MeasuredModels,
    step_correction: Correction,
    device: DeviceModel,
) -> tuple[float, int]:
    """Returns a step's predicted seconds, and its predicted bytes on all devices."""
    device = dataclasses.replace(device, contention=step_correction.contention)
    costs, alone = models(way.num_rows)
    costs = dataclasses.replace(costs, allocator_loss=step_correction.allocator_loss)
    candidate = way.planned.candidate
    needs = DeviceNeeds(candidate, costs)
    boundaries = way.planned.boundaries
    cell_seconds = step_correction.corrected(alone)
    devices = [device] * candidate.num_devices
    step = evaluate_boundaries(needs, boundaries, cell_seconds, devices)
    return step.step_seconds, needs.together(boundaries, step.timeline)


def _correction(
    steps: Sequence[RealStep | None],
    models: MeasuredModels,
    size: int,
    device: DeviceModel,
) -> Correction:
    costs, alone = models(size)
    one, two = (None if step is None else step.take(costs, device) for step in steps)
    return correction(alone, one, two, 2) or Correction()


def _run_in_turns(steps: Iterable[RealStep | None]) -> None:
    """Runs each step often: in a row, to measure its memory, and then in turns."""
    real_steps = [step for step in steps if step is not None]
    for step in real_steps:
        step.run_in_a_row()
        step.forget_times()
    while not all(is_enough(step.seconds) for step in real_steps):
        for step in real_steps:
            step.run()


def _fitting_rows(
    tracer: ModelTracer,
    batch_size: int,
    candidates: Sequence[Candidate],
    num_rows: int | None,
) -> int:
    """Returns rows for a step of about a second, or `num_rows` after checks."""
    costs_of = costs_by_rows(tracer)
    second = (1 + BACKWARD_PER_FORWARD) * sum(costs_of(1).flops) / _SPEED  # Of a row.
    least = max(candidate.num_micro_batches for candidate in candidates)
    rows = num_rows or least
    if rows % least:
        near = max(rows // least, 1) * least
        raise UserValueError(
            path="--batch",
            expected=f"a multiple of {least}, the most micro-batches, such as {near}",
            got=rows,
        )
    while not num_rows and 2 * rows <= batch_size and 2 * rows * second <= _SHORT:
        rows *= 2
    needs = [
        DeviceNeeds(candidate, costs_of(rows // candidate.num_micro_batches))
        for candidate in candidates
        if candidate.num_devices == 1
    ]
    needed = max(sum(need.by_device([tracer.num_cells])) for need in needs)
    # All ways, and two real steps of each size, have weights at the same time.
    sizes = {candidate.num_micro_batches for candidate in candidates}
    num_other_copies = len(candidates) + 2 * len(sizes) - 1
    needed += int(num_other_copies * needs[0].weights_share())
    if needed > _MAX_MEMORY * available_memory():
        raise UserValueError(f"needs {bytes_text(needed)} for {rows} rows")
    if rows * second > _LONG:
        about = seconds_text(rows * second)
        raise UserValueError(f"takes about {about} for {rows} rows")
    return rows
