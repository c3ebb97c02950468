"""The flops time model: seconds of cells and of the weights' update. Pure.

In an update, a replica's device gathers the gradients of the cells that it owns,
updates their weights, and sends these to the same device of the other replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import BACKWARD_PER_FORWARD, CellSeconds
from lingvo_pipe.planner.costs.device_needs import OwnerShares
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.device_model import DeviceModel


def flops_time(model: ModelCosts, device: DeviceModel, dtype: str) -> list[CellSeconds]:
    """Returns the seconds of cells by their flops and the device's speed in a dtype."""
    speed = device.speed(dtype)
    forward = [flops / speed for flops in model.flops]
    return [CellSeconds(x, BACKWARD_PER_FORWARD * x) for x in forward]


def stage_seconds(cells: Sequence[CellSeconds]) -> CellSeconds:
    """Returns the seconds of consecutive cells together."""
    return CellSeconds(sum(c.forward for c in cells), sum(c.backward for c in cells))


def update_seconds(
    model: ModelCosts,
    schedule: Schedule,
    boundaries: Sequence[int],
    num_replicas: int,
    device: DeviceModel,
) -> float:
    """Returns the seconds of the slowest device's update, for all its stages."""
    cells = model.calls[: model.num_cells]
    in_memory = [
        2 * (call.weights + slots) + call.accumulators
        for call, slots in zip(cells, model.slot_bytes, strict=True)
    ]
    # Each of R - 1 other replicas sends its gradients and receives the weights.
    sent = [(call.weights + call.accumulators) * (num_replicas - 1) for call in cells]
    seconds = [[0.0] * num_replicas for _ in range(schedule.num_devices)]
    device_of_stage = schedule.device_of_stage()
    bandwidths = device.memory_bandwidth, device.link_bandwidth
    for cell_bytes, bandwidth in zip((in_memory, sent), bandwidths, strict=True):
        shares = OwnerShares(cell_bytes, num_replicas)
        for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
            own = seconds[device_of_stage[stage]]
            for replica, num_bytes in enumerate(shares.by_replica(*pair)):
                own[replica] += num_bytes / bandwidth
    return max(map(max, seconds))
