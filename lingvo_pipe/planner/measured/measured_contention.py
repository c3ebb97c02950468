"""Slowdown from contention between devices of one machine, measured.

The devices share the machine's memory, its caches, the clock rate that its processor
can hold, and the host that launches their operations.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.planner.costs.traced_model import TracedModel


def measured_slowdown(
    traced: TracedModel, devices: Sequence[str], seconds: Sequence[CellSeconds]
) -> float:
    """Returns the time of cells with contention over `seconds` without, at least 1."""
    if len(devices) == 1:
        return 1.0
    measure = functools.partial(measured_seconds, traced.layers, traced.specs)
    with ThreadPoolExecutor(len(devices)) as pool:
        contended = median(map(_total, pool.map(measure, devices)))
    names = map(device_name, devices)
    here = [name for name in names if name.kind == "CPU" and name.worker is None]
    devices_per_core = len(here) / len(os.sched_getaffinity(0))
    return max(contended / _total(seconds), devices_per_core, 1.0)


def _total(cells: Sequence[CellSeconds]) -> float:
    return sum(cell.forward + cell.backward for cell in cells)
