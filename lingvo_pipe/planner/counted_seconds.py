"""How long cells take on a kind of device. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.pipeline.splitting.cell_seconds import (
    BACKWARD_PER_FORWARD,
    CellSeconds,
)
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.model_costs import ModelCosts


def counted_seconds(
    model: ModelCosts, device: DeviceModel, dtype: str
) -> list[CellSeconds]:
    """By what is to be computed, and how fast the device is said to be.

    Args:
        model: the cells.
        device: where they run.
        dtype: in which they compute.
    """
    speed = device.speed(dtype)
    forward = [flops / speed for flops in model.flops]
    return [CellSeconds(x, BACKWARD_PER_FORWARD * x) for x in forward]


def stage_seconds(cells: Sequence[CellSeconds]) -> CellSeconds:
    """Of consecutive cells."""
    return CellSeconds(sum(c.forward for c in cells), sum(c.backward for c in cells))
