"""The devices that a plan is for: of a kind that is known, or this machine's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.planner.calibration import calibrated_device
from lingvo_pipe.planner.device_model import DEVICES, MEASURED, DeviceModel


@dataclasses.dataclass(frozen=True)
class Rented:
    """So many devices of a kind.

    Attributes:
        device: the kind.
        number: how many.
        names: full names of those that are there; none: they are yet to be rented.
    """

    device: DeviceModel
    number: int
    names: Sequence[str] = ()


def rented(number: int, kind: str) -> Rented:
    """The devices; those of this machine are made ready and measured.

    Raises:
        ValueError: if this machine has not so many.
    """
    if kind != MEASURED:
        return Rented(DEVICES[kind], number)
    names = initialize_devices(number)
    return Rented(calibrated_device(names), number, names)
