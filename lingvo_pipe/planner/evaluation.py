"""What one way to run a model would take: time, bubble, and memory of each device.

    cells' seconds, bytes  ->  stages as even as can be within the memory
                           ->  the schedule, simulated

Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.allowed_stages import (
    Size,
    farthest_ends,
    least_largest_ends,
)
from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.pipeline.stage_memory import StageNeeds
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.cell_seconds import CellSeconds, stage_seconds
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.model_costs import ModelCosts


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A candidate that fits.

    Attributes:
        candidate: which.
        ends: of its stages.
        step_seconds: with the update of the weights.
        bytes_by_device: of a replica.
        timeline: of a replica's step, without the update.
    """

    candidate: Candidate
    ends: Sequence[int]
    step_seconds: float
    bytes_by_device: Sequence[int]
    timeline: Timeline


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """A candidate that does not fit.

    Attributes:
        candidate: which.
        needed: bytes that its largest device would need, of the best split there is.
    """

    candidate: Candidate
    needed: int


def evaluate(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
    slot_bytes: float,
) -> Evaluated | TooLarge:
    """Finds the best stages of a candidate, and simulates its step.

    Args:
        candidate: how the mini-batch is shared.
        model: of its micro-batches.
        seconds: of its cells.
        device: on which it runs.
        slot_bytes: what the optimizer keeps for a parameter.
    """
    schedule = make_schedule(
        candidate.schedule,
        candidate.num_devices,
        candidate.micro_batches_each,
        candidate.stages_per_device,
        candidate.recompute,
    )
    ends = _best_ends(candidate, model, seconds, device, slot_bytes, schedule)
    if isinstance(ends, TooLarge):
        return ends
    timeline = simulate(schedule, _costs(model, seconds, device, ends))
    after = max(
        _update_seconds(model, candidate, device, slot_bytes, *stage)
        for stage in itertools.pairwise([0, *ends])
    )
    return Evaluated(
        candidate,
        ends,
        timeline.step_seconds + after,
        _bytes(model, candidate, slot_bytes, schedule, ends),
        timeline,
    )


def _best_ends(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
    slot_bytes: float,
    schedule: Schedule,
) -> list[int] | TooLarge:
    """The most even stages that fit."""
    num_cells, num_stages = model.num_cells, candidate.num_stages
    costs = [cell.forward + cell.backward for cell in seconds]
    ends = balanced_ends(costs, num_stages, model.crossing)
    if max(_bytes(model, candidate, slot_bytes, schedule, ends)) <= device.memory:
        return ends  # Memory limits nothing.
    everything = model.memory.weights(0, num_cells) + model.memory.totals(0, num_cells)
    everything += _slots(model, candidate, slot_bytes, 0, num_cells)
    if everything > device.memory * candidate.num_devices:
        return TooLarge(candidate, everything // candidate.num_devices)
    needs = StageNeeds(model.memory, schedule)

    def size(stage: int, start: int, end: int) -> int:
        held = needs(stage, start, _stop(model, end)) * candidate.stages_per_device
        return held + _slots(model, candidate, slot_bytes, start, end)

    farthest = farthest_ends(size, device.memory, num_cells, num_stages)
    if least_largest_ends(lambda *_: 0, farthest) is None:
        return TooLarge(candidate, _least(size, num_cells, num_stages))
    return balanced_ends(costs, num_stages, model.crossing, farthest)


def _stop(model: ModelCosts, end: int) -> int:
    """The end of a stage, the loss behind the last cell included."""
    return end + (end == model.num_cells)


def _slots(
    model: ModelCosts, candidate: Candidate, slot_bytes: float, start: int, end: int
) -> int:
    """What the optimizer keeps on a device; replicas share it."""
    before = model.parameters_before
    own = (before[end] - before[start]) * candidate.stages_per_device
    return int(own * slot_bytes / candidate.num_replicas)


def _least(size: Size, num_cells: int, num_stages: int) -> int:
    """What the largest stage needs of the best split there is."""
    everything = [[num_cells] * num_cells] * num_stages
    ends = least_largest_ends(size, everything)
    assert ends is not None  # There is a cell for each stage.
    stages = enumerate(itertools.pairwise([0, *ends]))
    return max(size(stage, *pair) for stage, pair in stages)


def _costs(
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
    ends: Sequence[int],
) -> Costs:
    stages = []
    for start, end in itertools.pairwise([0, *ends]):
        own = stage_seconds(seconds[start:end])
        stages.append(
            StageCosts(
                forward=own.forward,
                backward=own.backward,
                send_forward=device.send_seconds(model.crossing[end - 1]),
                send_backward=device.send_seconds(
                    model.crossing[start - 1] if start else 0
                ),
            )
        )
    return Costs(tuple(stages), overhead=device.operation_seconds)


def _update_seconds(
    model: ModelCosts,
    candidate: Candidate,
    device: DeviceModel,
    slot_bytes: float,
    start: int,
    end: int,
) -> float:
    """Of a stage's weights: reading and writing them, and what replicas exchange."""
    weights = model.memory.weights(start, end)
    totals = model.memory.totals(start, end)
    slots = _slots(model, candidate, slot_bytes, start, end)
    own = (2 * weights + 2 * slots + totals) / candidate.num_replicas
    others = (weights + totals) * (1 - 1 / candidate.num_replicas)
    return own / device.memory_bandwidth + others / device.link_bandwidth


def _bytes(
    model: ModelCosts,
    candidate: Candidate,
    slot_bytes: float,
    schedule: Schedule,
    ends: Sequence[int],
) -> list[int]:
    found = model.memory.of_devices(schedule, [*ends[:-1], _stop(model, ends[-1])])
    homes = schedule.device_of_stage()
    one = dataclasses.replace(candidate, stages_per_device=1)
    for stage, pair in enumerate(itertools.pairwise([0, *ends])):
        found[homes[stage]] += _slots(model, one, slot_bytes, *pair)
    return found
