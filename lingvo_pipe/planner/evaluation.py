"""What one way to run a model would take: time, bubble, and memory of each device.

    cells' seconds, bytes  ->  stages as even as can be within the memory
                           ->  the schedule, simulated

Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.busy_devices import busy_devices
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.counted_seconds import stage_seconds
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.device_needs import DeviceNeeds
from lingvo_pipe.planner.fitting_ends import fitting_ends
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.too_large import TooLarge
from lingvo_pipe.planner.update_seconds import update_seconds


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


def evaluate(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> Evaluated | TooLarge:
    """Finds the best stages of a candidate, and simulates its step.

    Args:
        candidate: how the mini-batch is shared.
        model: of its micro-batches.
        seconds: of its cells.
        device: on which it runs.
    """
    schedule = make_schedule(
        candidate.schedule,
        candidate.num_devices,
        candidate.micro_batches_each,
        candidate.stages_per_device,
        candidate.recompute,
    )
    needs = DeviceNeeds(candidate, model, schedule)
    work = [cell.forward + cell.backward for cell in seconds]
    ends = fitting_ends(needs, device.usable, work, model.crossing)
    if ends is None:
        return TooLarge(candidate, needs, device.usable)
    return evaluate_ends(candidate, schedule, needs, ends, model, seconds, device)


def evaluate_ends(
    candidate: Candidate,
    schedule: Schedule,
    needs: DeviceNeeds,
    ends: Sequence[int],
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> Evaluated:
    """Simulates a step with given stages.

    Args:
        candidate: as of `evaluate`.
        schedule: the candidate's.
        needs: what its devices need.
        ends: of its stages.
        model: as of `evaluate`.
        seconds: likewise.
        device: likewise.
    """
    costs = functools.partial(step_costs, seconds, model.crossing, ends, device)
    timeline = simulate(schedule, costs())
    company, num_replicas = device.company, candidate.num_replicas
    factor = company.slowed(busy_devices(timeline) * num_replicas)
    if factor > 1:
        timeline = simulate(schedule, costs(factor))
    after = update_seconds(model, schedule, ends, num_replicas, device)
    after += company.update_seconds(candidate.num_devices * num_replicas)
    return Evaluated(
        candidate,
        ends,
        timeline.step_seconds + after,
        needs.of_devices(ends),
        timeline,
    )


def step_costs(
    seconds: Sequence[CellSeconds],
    crossing: Sequence[int],
    ends: Sequence[int],
    device: DeviceModel,
    factor: float = 1.0,
) -> Costs:
    """What the operations of a step take.

    Args:
        seconds: of the cells.
        crossing: for each cell the bytes that go to those behind it.
        ends: of the stages.
        device: on which they run.
        factor: what cells take there, by their seconds.
    """
    stages = []
    for start, end in itertools.pairwise([0, *ends]):
        own = stage_seconds(seconds[start:end])
        stages.append(
            StageCosts(
                forward=own.forward * factor,
                backward=own.backward * factor,
                send_forward=device.send_seconds(crossing[end - 1]),
                send_backward=device.send_seconds(crossing[start - 1] if start else 0),
            )
        )
    return Costs(tuple(stages), overhead=device.operation_seconds)
