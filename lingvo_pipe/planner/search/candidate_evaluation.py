"""The evaluation of a candidate: time, bubble, and memory of each device. Pure.

seconds and bytes of cells  ->  the most balanced stages that fit into the memory
                            ->  the schedule, simulated
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.allowed_stages import feasible_ends, is_feasible
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds, OversizedCandidate
from lingvo_pipe.planner.costs.flops_time_model import stage_seconds, update_seconds
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The time and memory of a candidate that fits."""

    candidate: Candidate
    boundaries: Sequence[int]
    step_seconds: float  # With the weights' update.
    bytes_by_device: Sequence[int]  # Of one replica.
    timeline: Timeline  # Of one replica, without the update.


def evaluate(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> Evaluation | OversizedCandidate:
    """Finds a candidate's best stages, and simulates its step; see `step_costs`."""
    needs = _needs_of(candidate, model)
    boundaries = feasible_boundaries(needs, device.usable_bytes, _work(seconds))
    if boundaries is None:
        return OversizedCandidate(needs, device.usable_bytes)
    return evaluate_boundaries(needs, boundaries, seconds, device)


def candidate_fits(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> bool:
    """Returns whether `evaluate` finds stages that fit."""
    needs = _needs_of(candidate, model)
    limit = device.usable_bytes
    return feasible_boundaries(needs, limit, _work(seconds)) is not None


def _needs_of(candidate: Candidate, model: ModelCosts) -> DeviceNeeds:
    c = candidate
    sizes = c.num_devices, c.micro_batches_per_replica, c.stages_per_device
    schedule = make_schedule(c.schedule, *sizes, c.recompute)
    return DeviceNeeds(candidate, model, schedule)


def _work(seconds: Sequence[CellSeconds]) -> list[float]:
    return [cell.forward + cell.backward for cell in seconds]


def feasible_boundaries(
    needs: DeviceNeeds, limit: int, costs: Sequence[float]
) -> list[int] | None:
    """Returns the most balanced stages that fit, or None if none fit."""
    if not needs.can_fit(limit):
        return None
    keys, traffic = needs.stage_keys, needs.model.boundary_bytes
    boundaries = balanced_boundaries(costs, len(keys), traffic)
    if max(needs.by_device(boundaries)) <= limit:
        return boundaries  # The memory is no constraint.
    for size in (needs.for_stage, needs.share):
        feasible_end = feasible_ends(size, limit, len(costs), keys)
        if not is_feasible(feasible_end):
            break
        boundaries = balanced_boundaries(costs, len(keys), traffic, feasible_end)
        if max(needs.by_device(boundaries)) <= limit:
            return boundaries
    return None


def evaluate_boundaries(
    needs: DeviceNeeds,
    boundaries: Sequence[int],
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> Evaluation:
    """Simulates a step of a candidate with given stages; see `evaluate`."""
    candidate, model, schedule = needs.candidate, needs.model, needs.schedule
    given = seconds, model.boundary_bytes, boundaries, device
    timeline = simulate(schedule, step_costs(*given))
    contention, num_replicas = device.contention, candidate.num_replicas
    slowdown = contention.slowdown_at(mean_concurrency(timeline) * num_replicas)
    if slowdown > 1:
        timeline = simulate(schedule, step_costs(*given, slowdown))
    after = update_seconds(model, schedule, boundaries, num_replicas, device)
    after += contention.update_seconds(candidate.total_devices)
    step_seconds = timeline.step_seconds + after
    num_bytes = needs.by_device(boundaries)
    return Evaluation(candidate, boundaries, step_seconds, num_bytes, timeline)


def step_costs(
    seconds: Sequence[CellSeconds],
    boundary_bytes: Sequence[int],
    boundaries: Sequence[int],
    device: DeviceModel,
    slowdown: float = 1.0,
) -> Costs:
    """Returns the costs of a step's operations.

    `boundary_bytes` would cross a boundary after each cell. `seconds` of the cells are
    without contention, whose `slowdown` is a factor.
    """

    def stage_costs(start: int, end: int) -> StageCosts:
        own = stage_seconds(seconds[start:end])
        received = boundary_bytes[start - 1] if start else 0
        return StageCosts(
            forward=own.forward * slowdown,
            backward=own.backward * slowdown,
            send_forward=device.send_seconds(boundary_bytes[end - 1]),
            send_backward=device.send_seconds(received),
        )

    stages = itertools.starmap(stage_costs, itertools.pairwise([0, *boundaries]))
    return Costs(tuple(stages), overhead=device.operation_seconds)


def mean_concurrency(timeline: Timeline) -> float:
    """Returns the number of busy devices, averaged over busy device seconds.

    device 0   ##########
    device 1      ##########
    1  2      1      devices, for 3, 7 and 3 seconds

    Here 2 devices compute in 14 of 20 device seconds, so the mean is 1.7. It is at
    least 1.
    """
    ops = [timed for _, timed in timeline.ops()]
    changes = sorted([(x.start, 1) for x in ops] + [(x.end, -1) for x in ops])
    busy, once, squared = 0, 0.0, 0.0
    for (time, change), (later, _) in itertools.pairwise(changes):
        busy += change
        once += busy * (later - time)
        squared += busy**2 * (later - time)
    return squared / once if once else 1.0
