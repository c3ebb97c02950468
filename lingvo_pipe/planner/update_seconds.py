"""How long the update of the weights takes. Pure.

A replica's device gathers the gradients of the cells whose weights it has, changes
them, and sends them to the same device of the other replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.home_shares import HomeShares
from lingvo_pipe.planner.model_costs import ModelCosts


def update_seconds(
    model: ModelCosts,
    schedule: Schedule,
    ends: Sequence[int],
    num_replicas: int,
    device: DeviceModel,
) -> float:
    """Of the device that takes longest, for all its stages together.

    Args:
        model: whose weights are updated.
        schedule: says which stages a device has.
        ends: of the stages.
        num_replicas: R.
        device: on which it runs.
    """
    cells = model.calls[: model.num_cells]
    in_memory = [
        2 * call.weights + call.totals + 2 * slots
        for call, slots in zip(cells, model.slot_bytes, strict=True)
    ]
    # R - 1 others send their gradients, and are sent the weights.
    sent = [(call.weights + call.totals) * (num_replicas - 1) for call in cells]
    seconds = [[0.0] * num_replicas for _ in range(schedule.num_devices)]
    homes = schedule.device_of_stage()
    for amounts, bandwidth in (
        (in_memory, device.memory_bandwidth),
        (sent, device.link_bandwidth),
    ):
        shares = HomeShares(amounts, num_replicas)
        for stage, pair in enumerate(itertools.pairwise([0, *ends])):
            own = seconds[homes[stage]]
            for replica, num_bytes in enumerate(shares.of_replicas(*pair)):
                own[replica] += num_bytes / bandwidth
    return max(map(max, seconds))
