"""How long cells take on a kind of device. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.model_costs import ModelCosts

# A backward pass has two products of matrices for each that its forward pass has.
_BACKWARD_PER_FORWARD = 2


class CellSeconds(NamedTuple):
    """What a cell takes for a micro-batch."""

    forward: float
    backward: float


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
    return [CellSeconds(x, _BACKWARD_PER_FORWARD * x) for x in forward]


def stage_seconds(cells: Sequence[CellSeconds]) -> CellSeconds:
    """Of consecutive cells."""
    return CellSeconds(sum(c.forward for c in cells), sum(c.backward for c in cells))
