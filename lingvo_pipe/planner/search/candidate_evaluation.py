"""The evaluation of a candidate: the time of a step, and each device's memory.

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
    devices: Sequence[DeviceModel]  # Of each replica, in order.
    placement: Placement = ()  # Of the candidate's devices on hosts.
    bytes_on_hosts: Sequence[int] = ()  # Each device's peak on its host; () if 0.

    @property
    def fullest(self) -> int:
        """The index of the device that has the least memory left."""
        pairs = zip(self.devices, self.bytes_by_device, strict=True)
        left = [device.usable_bytes - num_bytes for device, num_bytes in pairs]
        return left.index(min(left))


def evaluate(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    devices: Sequence[DeviceModel],
) -> Evaluation | OversizedCandidate:
    """Finds the most balanced stages that fit into memory, and simulates a step.

    `devices` are the devices of each replica, in order. `seconds` are for a device with
    a slowness of 1. Returns an OversizedCandidate if no such stages are found. The
    simulation also checks that the schedule is valid.
    """
    stages = find_stages(candidate, model, seconds, devices)
    if isinstance(stages, OversizedCandidate):
        return stages
    return evaluate_boundaries(*stages, seconds, devices)


def find_stages(
    candidate: Candidate,
    model: ModelCosts,
    seconds: Sequence[CellSeconds],
    devices: Sequence[DeviceModel],
) -> tuple[DeviceNeeds, list[int]] | OversizedCandidate:
    """Finds the most balanced stages that fit. For the arguments see `evaluate`."""
    limit = max(device.usable_bytes for device in devices)
    lacking = [limit - device.usable_bytes for device in devices]
    needs = DeviceNeeds(candidate, model, lacking=lacking)
    has_one_stage = candidate.stages_per_device == 1  # Else `can_fit` may be wrong.
    if needs.weights_share() > limit or (has_one_stage and not needs.can_fit(limit)):
        return OversizedCandidate(needs, limit)
    work = [cell.forward + cell.backward for cell in seconds]
    by_stage = [devices[k].slowness for k in needs.schedule.stage_devices]
    keys, traffic = needs.stage_keys, model.boundary_bytes
    boundaries = balanced_boundaries(work, len(keys), traffic, slowness=by_stage)
    if needs.largest(boundaries) <= limit:
        return needs, boundaries  # The memory is no constraint.
    for size in (needs.for_stage, needs.share):
        feasible_end = feasible_ends(size, limit, len(work), keys)
        if not is_feasible(feasible_end):
            break
        boundaries = balanced_boundaries(
            work, len(keys), traffic, feasible_end, by_stage
        )
        if needs.largest(boundaries) <= limit:
            return needs, boundaries
    return OversizedCandidate(needs, limit)


def evaluate_boundaries(
    needs: DeviceNeeds,
    boundaries: Sequence[int],
    seconds: Sequence[CellSeconds],
    devices: Sequence[DeviceModel],
) -> Evaluation:
    """Simulates a step of a candidate whose stages end at these boundaries.

    For the arguments see `evaluate`. On several hosts, returns the evaluation with the
    fastest of `placements`.
    """
    candidate, model, schedule = needs.candidate, needs.model, needs.schedule
    num_replicas, contention = candidate.num_replicas, devices[0].contention
    by_stage = [devices[k] for k in schedule.stage_devices]
    num_bytes = needs.by_device(boundaries)
    copied: Sequence[int] = ()
    on_hosts: Sequence[int] = ()
    if candidate.offloads:
        copied = needs.copied(boundaries)
    if candidate.offloads or any(model.host_slot_bytes):
        on_hosts = needs.on_hosts(boundaries)

    def slowdown(num_busy: int) -> float:
        return contention.slowdown_at(num_busy * num_replicas)

    @functools.cache  # Replicas and placements have mostly the same links.
    def timeline_of(links: tuple[Link, ...]) -> Timeline:
        costs = step_costs(
            seconds,
            model.boundary_bytes,
            boundaries,
            by_stage,
            links,
            weight_shares=model.weight_shares,
            left_out=model.left_out,
            copied_bytes=copied,
            recomputed=[call.recomputed for call in model.calls],
        )
        if slowdown(schedule.num_devices) == 1:
            return simulate(schedule, costs)
        return simulate_with_contention(schedule, costs, slowdown)

    def placed(placement: Placement) -> Evaluation:
        timelines = map(timeline_of, _links(placement, schedule, by_stage))
        slowest = max(timelines, key=lambda timeline: timeline.step_seconds)
        after = update_seconds(
            model, schedule, boundaries, num_replicas, devices, placement
        )
        after += contention.rest_seconds(candidate.total_devices)
        total = slowest.step_seconds + after
        return Evaluation(
            *(candidate, boundaries, total, num_bytes, slowest, devices, placement),
            bytes_on_hosts=on_hosts,
        )

    hosts, is_one_kind = devices[0].hosts, all(x == devices[0] for x in devices)
    compared = placements(num_replicas, candidate.num_devices, hosts, is_one_kind)
    return min(map(placed, compared), key=lambda x: x.step_seconds)


def _links(
    placement: Placement, schedule: Schedule, by_stage: Sequence[DeviceModel]
) -> list[tuple[Link, ...]]:
    """Returns each replica's links between stages, or one item if all share a host."""
    first = by_stage[0]
    if first.hosts is None:
        return [_neighbor_links(by_stage)]
    return stage_links(placement, schedule.stage_devices, first.link, first.hosts)


def _neighbor_links(devices: Sequence[DeviceModel]) -> tuple[Link, ...]:
    return tuple(a.link.slower(b.link) for a, b in itertools.pairwise(devices))


def step_costs(
    seconds: Sequence[CellSeconds],
    boundary_bytes: Sequence[int],
    boundaries: Sequence[int],
    devices: Sequence[DeviceModel],
    links: Sequence[Link] | None = None,
    weight_shares: Sequence[float] = (),
    left_out: Sequence[float] = (),
    copied_bytes: Sequence[int] = (),
    recomputed: Sequence[bool] = (),
) -> Costs:
    """Returns the costs of a step's operations, without contention.

    `seconds` are for a device with a slowness of 1. `devices` has each stage's device,
    `copied_bytes` the bytes that each stage offloads per micro-batch, and `recomputed`
    whether each cell, and the loss, is recomputed; if (), all are. If `links`, between
    consecutive stages, is None, all stages are on one host. For the other arguments
    see `ModelCosts`.
    """
    shares = weight_shares or [0.5] * len(seconds)
    pairs = list(itertools.pairwise([0, *boundaries]))
    seconds = [
        CellSeconds(x.forward * device.slowness, x.backward * device.slowness)
        for pair, device in zip(pairs, devices, strict=True)
        for x in seconds[slice(*pair)]
    ]
    late = [cell.backward * x for cell, x in zip(seconds, shares, strict=True)]
    left_out = left_out or [0.0] * len(seconds)
    flags = recomputed or [True] * len(seconds)
    again = [x.forward * flag for x, flag in zip(seconds, flags, strict=False)]
    between = links or _neighbor_links(devices)

    def stage_costs(
        start: int, end: int, before: Link, after: Link, copy: float
    ) -> StageCosts:
        stage = stage_seconds(seconds[start:end])
        received = boundary_bytes[start - 1] if start else 0
        return StageCosts(
            forward=stage.forward,
            backward=stage.backward,
            recompute=sum(again[start:end]) - again[end - 1] * left_out[end - 1],
            input_gradient=stage.backward - sum(late[start:end]),
            weight_gradient=sum(late[start:end]),
            send_forward=after.seconds(boundary_bytes[end - 1]),
            send_backward=before.seconds(received),
            offload=copy,
            load=copy,
        )

    # Nothing is sent before the first stage, and after the last one.
    around = itertools.pairwise([devices[0].link, *between, devices[-1].link])
    copied_bytes = copied_bytes or [0] * len(devices)
    copies = map(DeviceModel.copy_seconds, devices, copied_bytes)
    stages = (
        stage_costs(*pair, *links, copy)
        for pair, links, copy in zip(pairs, around, copies, strict=True)
    )
    return Costs(tuple(stages), overhead=max_overhead(devices))


def max_overhead(devices: Sequence[DeviceModel]) -> float:
    """Returns the largest overhead of an operation, which counts for all devices."""
    return max(device.operation_seconds for device in devices)
