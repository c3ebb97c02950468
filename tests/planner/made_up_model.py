"""A model of random cells, for tests of the planner's pure modules."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence

from lingvo_pipe.pipeline.memory.call_bytes import CallBytes, Workspace
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.model_costs import ModelCosts, Models
from lingvo_pipe.planner.resources.candidate import Candidate, candidates
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate

NUM_CELLS = 6
BATCH_SIZE = 8
NUM_DEVICES = 4


def made_up_model(num_rows: int, seed: int = 0) -> ModelCosts:
    """Returns a chain of cells, with hundreds of bytes of weights and per row."""
    rng = random.Random(seed)
    numbers = [rng.randrange(1, 9) for _ in range(NUM_CELLS)]
    residuals = [rng.randrange(5, 90) for _ in range(NUM_CELLS + 1)]
    work = [(rng.randrange(50), rng.randrange(50)) for _ in range(NUM_CELLS + 1)]
    calls = [
        CallBytes(
            weights=100 * (numbers[i] if i < NUM_CELLS else 0),
            accumulators=100 * (numbers[i] if i < NUM_CELLS else 0),
            residuals=each * num_rows,
            weight_residuals=each // 2 * num_rows,
            recomputed=True,
            used=[i],
            made=[i + 1] if i < NUM_CELLS else [],
            new_weight_residuals=each // 3 * num_rows,
            workspace=Workspace(*[(a * num_rows, b + 9 * num_rows)] * 4),
        )
        for i, (each, (a, b)) in enumerate(zip(residuals, work, strict=True))
    ]
    return ModelCosts(
        num_rows=num_rows,
        flops=[1000 * rng.randrange(1, 9) * num_rows for _ in range(NUM_CELLS)],
        num_parameters=[25 * each for each in numbers],
        slot_bytes=[200 * each for each in numbers],
        calls=calls,
        value_bytes={i: rng.randrange(1, 30) * num_rows for i in range(1, 7)},
        output_shares=[*(rng.random() for _ in range(NUM_CELLS - 1)), 0.0],
    )


def made_up_device(memory: int, name: str = "GPU") -> DeviceModel:
    """Returns a device on which such cells take about as long as messages."""
    return DeviceModel(
        name=name,
        memory=memory,
        reserved=0,
        flops={"float32": 1e6},
        memory_bandwidth=1e6,
        link_bandwidth=1e5,
        link_seconds=1e-4,
        operation_seconds=1e-4,
        efficiency=1.0,
    )


def made_up_models(device: DeviceModel, seed: int = 0) -> Models:
    """Returns the model by the rows of a micro-batch."""

    @functools.cache
    def models(num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        model = made_up_model(num_rows, seed)
        return model, flops_time(model, device, "float32")

    return models


def evaluated(
    candidate: Candidate, device: DeviceModel, model: ModelCosts | None = None
) -> Evaluation:
    """Evaluates a candidate that fits, by default for the model, on devices."""
    rows = BATCH_SIZE // candidate.num_micro_batches
    costs, seconds = made_up_models(made_up_device(10**6))(rows)
    devices = [device] * candidate.num_devices
    found = evaluate(candidate, model or costs, seconds, devices)
    assert isinstance(found, Evaluation)
    return found


def every_candidate() -> list[Candidate]:
    """Returns all ways to run the model on the devices."""
    return list(candidates(NUM_DEVICES, NUM_CELLS, BATCH_SIZE))


def every_needs() -> Iterator[tuple[Candidate, ModelCosts, DeviceNeeds]]:
    """Yields the needs of each candidate, for a model of its own."""
    for seed, candidate in enumerate(every_candidate()):
        model = made_up_model(BATCH_SIZE // candidate.num_micro_batches, seed)
        yield candidate, model, DeviceNeeds(candidate, model, schedule_of(candidate))


def schedule_of(candidate: Candidate) -> Schedule:
    """Returns the candidate's schedule."""
    return make_schedule(
        candidate.schedule,
        candidate.num_devices,
        candidate.micro_batches_per_replica,
        candidate.stages_per_device,
        candidate.recompute,
        offload=candidate.offload if candidate.offloads else None,
    )
