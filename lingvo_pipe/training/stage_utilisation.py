"""How much of a step's time its devices worked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingvo_pipe.pipeline.devices.device_names import device_name


def stage_utilisation(
    devices: Sequence[str], times: Sequence[np.ndarray]
) -> float | None:
    """The part of the devices' time in which they worked: what the bubble leaves.

    Args:
        devices: their names, full or short.
        times: for each device `[N, 3]`, when its operations ran; see `TrainStep.Times`.

    Returns:
        A number from 0 to 1; see `Timeline.bubble_fraction`. None where times don't
        say it: those of a GPU are when work was handed to it, those of several
        machines are of several clocks, and a clock may have been set meanwhile.
    """
    names = [device_name(device) for device in devices]
    several_clocks = len({name.worker for name in names}) > 1
    if several_clocks or any(name.kind != "CPU" for name in names):
        return None
    if any((np.diff(rows.ravel()) < 0).any() for rows in times):
        return None
    rows = np.concatenate(times)  # Of all devices: wait_start, start, end.
    seconds = rows[:, 2].max() - rows[:, 0].min()
    busy = (rows[:, 2] - rows[:, 1]).sum()
    return float(busy / (seconds * len(times))) if seconds else None
