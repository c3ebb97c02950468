"""Estimates of the seconds that cells and the update of weights take.

A cell's seconds follow from its flops, and an update's seconds from its bytes. In an
update, the replica that owns a cell gathers its gradients from all other replicas,
updates its weights, and sends them back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import BACKWARD_PER_FORWARD, CellSeconds
from lingvo_pipe.planner.costs.device_needs import OwnerShares
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Placement


def flops_time(model: ModelCosts, device: DeviceModel, dtype: str) -> list[CellSeconds]:
    """Returns the cells' seconds: their flops, divided by the device's speed."""
    speed = device.speed(dtype)
    forward = [flops / speed for flops in model.flops]
    return [CellSeconds(x, BACKWARD_PER_FORWARD * x) for x in forward]


def stage_seconds(cells: Sequence[CellSeconds]) -> CellSeconds:
    """Returns the total seconds of consecutive cells."""
    return CellSeconds(sum(c.forward for c in cells), sum(c.backward for c in cells))


def update_seconds(
    model: ModelCosts,
    schedule: Schedule,
    boundaries: Sequence[int],
    num_replicas: int,
    devices: Sequence[DeviceModel],
    placement: Placement | None = None,
) -> float:
    """Returns the seconds that the slowest device takes to update its stages' weights.

    `devices` are the devices of each replica, in order. Messages go over the links of
    the placement, and all messages that leave a host share the host's bandwidth. If the
    placement is None, all devices are on one host.
    """
    cells = model.calls[: model.num_cells]
    in_memory = [
        2 * (call.weights + slots) + call.accumulators
        for call, slots in zip(cells, model.slot_bytes, strict=True)
    ]
    # With slots on the host, gradients go there, and updated weights come back. Devices
    # share the host's memory, so even the update counts at the speed of a link.
    on_host = [0] * len(cells)
    if model.host_slot_bytes:
        on_host = [
            call.weights + call.accumulators + 2 * slots
            for call, slots in zip(cells, model.host_slot_bytes, strict=True)
        ]
    # Each of R - 1 other replicas sends its gradients and receives the weights.
    sent = [call.weights + call.accumulators for call in cells]
    sums = [
        [[0, 0, 0] for _ in range(num_replicas)] for _ in range(schedule.num_devices)
    ]
    device_of_stage = schedule.device_of_stage()
    for i, cell_bytes in enumerate((in_memory, sent, on_host)):
        shares = OwnerShares(cell_bytes, num_replicas)
        for stage, pair in enumerate(itertools.pairwise([0, *boundaries])):
            for replica_sums, num_bytes in zip(
                sums[device_of_stage[stage]], shares.by_replica(*pair), strict=True
            ):
                replica_sums[i] += num_bytes
    slowest, leaving = 0.0, Counter[int]()
    for k, (device, replicas) in enumerate(zip(devices, sums, strict=True)):
        hosts = _hosts_of(k, num_replicas, device, placement)
        neighbors = Counter(hosts)
        for (touched, exchanged, copied), host in zip(replicas, hosts, strict=True):
            outside = num_replicas - neighbors[host]
            leaving[host] += exchanged * outside
            seconds = touched / device.memory_bandwidth + device.copy_seconds(copied)
            seconds += exchanged * (neighbors[host] - 1) / device.link_bandwidth
            if outside and device.hosts is not None:
                seconds += exchanged * outside / device.hosts.link.bandwidth
            slowest = max(slowest, seconds)
    if devices[0].hosts is None:
        return slowest
    return max(slowest, max(leaving.values()) / devices[0].hosts.bandwidth)


def _hosts_of(
    k: int, num_replicas: int, device: DeviceModel, placement: Placement | None
) -> list[int]:
    if device.hosts is None or placement is None:
        return [0] * num_replicas
    return [device.hosts.host(row[k]) for row in placement]
