"""The evaluation of a candidate: the time of a step, and each device's memory. Pure.

seconds and bytes of cells  ->  the most balanced stages that fit into the memory
                            ->  the schedule, simulated
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.contention import simulate_with_contention
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
from lingvo_pipe.planner.resources.hosts import Link, Placement, placements, stage_links


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The time and memory of a candidate that fits."""

    candidate: Candidate
    boundaries: Sequence[int]
    step_seconds: float  # With the weights' update.
    bytes_by_device: Sequence[int]  # Of each device, in the replica with the most.
    timeline: Timeline  # Of the slowest replica, without the update.
    placement: Placement = ()  # Of the candidate's devices on hosts.


def evaluate(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    device: DeviceModel,
) -> Evaluation | OversizedCandidate:
    """Finds the most balanced stages that fit into memory, and simulates a step.

    Returns an OversizedCandidate if none are found. The simulation takes its costs from
    `step_costs`, and also checks that the schedule is valid.
    """
    needs = DeviceNeeds(candidate, model)
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
    """Returns whether stages of the candidate are found that fit into memory."""
    needs = DeviceNeeds(candidate, model)
    limit = device.usable_bytes
    return feasible_boundaries(needs, limit, _work(seconds)) is not None


def _work(seconds: Sequence[CellSeconds]) -> list[float]:
    return [cell.forward + cell.backward for cell in seconds]


def feasible_boundaries(
    needs: DeviceNeeds, limit: int, costs: Sequence[float]
) -> list[int] | None:
    """Returns the most balanced stages that need at most `limit` bytes per device.

    `costs` are the cells' seconds. Returns None if no such stages are found.
    """
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
    """Simulates a step of a candidate whose stages end at these boundaries.

    On several hosts, returns the evaluation with the fastest of `placements`.
    """
    candidate, model, schedule = needs.candidate, needs.model, needs.schedule
    num_replicas, contention = candidate.num_replicas, device.contention
    num_bytes = needs.by_device(boundaries)

    def slowdown(num_busy: int) -> float:
        return contention.slowdown_at(num_busy * num_replicas)

    @functools.cache  # Replicas and placements have mostly the same links.
    def timeline_of(links: tuple[Link, ...]) -> Timeline:
        costs = step_costs(
            seconds,
            model.boundary_bytes,
            boundaries,
            device,
            links,
            weight_shares=model.weight_shares,
            left_out=model.left_out,
        )
        if slowdown(schedule.num_devices) == 1:
            return simulate(schedule, costs)
        return simulate_with_contention(schedule, costs, slowdown)

    def placed(placement: Placement) -> Evaluation:
        timelines = map(timeline_of, _links(placement, schedule, device))
        slowest = max(timelines, key=lambda timeline: timeline.step_seconds)
        after = update_seconds(
            model, schedule, boundaries, num_replicas, device, placement
        )
        after += contention.rest_seconds(candidate.total_devices)
        total = slowest.step_seconds + after
        return Evaluation(candidate, boundaries, total, num_bytes, slowest, placement)

    compared = placements(num_replicas, candidate.num_devices, device.hosts)
    return min(map(placed, compared), key=lambda x: x.step_seconds)


def _links(
    placement: Placement, schedule: Schedule, device: DeviceModel
) -> list[tuple[Link, ...]]:
    """Returns for each replica the links between consecutive stages.

    Without hosts, returns these links once, because all replicas have the same.
    """
    if device.hosts is None:
        return [(device.link,) * (schedule.num_stages - 1)]
    device_of_stage = schedule.device_of_stage()
    order = [device_of_stage[stage] for stage in range(schedule.num_stages)]
    return stage_links(placement, order, device.link, device.hosts)


def step_costs(
    seconds: Sequence[CellSeconds],
    boundary_bytes: Sequence[int],
    boundaries: Sequence[int],
    device: DeviceModel,
    links: Sequence[Link] | None = None,
    weight_shares: Sequence[float] = (),
    left_out: Sequence[float] = (),
) -> Costs:
    """Returns the costs of a step's operations, without contention.

    Args:
        seconds: seconds of the cells.
        boundary_bytes: bytes that would cross a boundary after each cell.
        boundaries: stage boundaries.
        device: the kind of devices.
        links: links between consecutive stages. If None, all stages are on one host.
        weight_shares: the part of each cell's backward pass that computes weights'
            gradients. If (), one half.
        left_out: the part of each cell's forward pass that a recomputation leaves out
            if the cell is the last of a stage. If (), 0.
    """
    shares = weight_shares or [0.5] * len(seconds)
    late = [cell.backward * x for cell, x in zip(seconds, shares, strict=True)]
    left_out = left_out or [0.0] * len(seconds)
    between = links or [device.link] * (len(boundaries) - 1)

    def stage_costs(start: int, end: int, before: Link, after: Link) -> StageCosts:
        stage = stage_seconds(seconds[start:end])
        received = boundary_bytes[start - 1] if start else 0
        return StageCosts(
            forward=stage.forward,
            backward=stage.backward,
            recompute=stage.forward - seconds[end - 1].forward * left_out[end - 1],
            input_gradient=stage.backward - sum(late[start:end]),
            weight_gradient=sum(late[start:end]),
            send_forward=after.seconds(boundary_bytes[end - 1]),
            send_backward=before.seconds(received),
        )

    pairs = itertools.pairwise([0, *boundaries])
    # Nothing is sent before the first stage, and after the last one.
    around = itertools.pairwise([device.link, *between, device.link])
    stages = (stage_costs(*a, *b) for a, b in zip(pairs, around, strict=True))
    return Costs(tuple(stages), overhead=device.operation_seconds)
