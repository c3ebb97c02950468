"""The most even stages that fit into the memory of devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.pipeline.splitting.allowed_stages import allows_a_cut, farthest_ends
from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.planner.device_needs import DeviceNeeds


def fitting_ends(
    needs: DeviceNeeds, limit: int, costs: Sequence[float], traffic: Sequence[int]
) -> list[int] | None:
    """The most even stages of which none needs more than the limit, if there are any.

    Args:
        needs: what stages need.
        limit: bytes of a device.
        costs: of each cell.
        traffic: for each cell the bytes that cross a boundary behind it.
    """
    if not needs.can_fit(limit):
        return None
    num_stages = len(needs.alike())
    ends = balanced_ends(costs, num_stages, traffic)
    if max(needs.of_devices(ends)) <= limit:
        return ends  # Memory limits nothing.
    farthest = farthest_ends(needs.of_stage, limit, len(costs), needs.alike())
    if not allows_a_cut(farthest):
        return None
    return balanced_ends(costs, num_stages, traffic, farthest)
