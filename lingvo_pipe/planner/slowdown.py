"""How much slower devices of one machine are while all of them compute.

They share its memory, its caches and the clock that its processor can hold.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.traced_model import TracedModel


def measured_slowdown(
    traced: TracedModel, devices: Sequence[str], alone: Sequence[CellSeconds]
) -> float:
    """Times a model's cells on all devices at a time.

    Args:
        traced: of the model.
        devices: full names.
        alone: what the cells, the loss included, take on one of them.

    Returns:
        What all together take for what one takes alone; at least 1.
    """
    if len(devices) == 1:
        return 1.0
    measure = functools.partial(measured_seconds, traced.stage_calls, traced.specs)
    with ThreadPoolExecutor(len(devices)) as pool:
        together = median(map(_total, pool.map(measure, devices)))
    return max(together / _total(alone), 1.0)


def _total(cells: Sequence[CellSeconds]) -> float:
    return sum(cell.forward + cell.backward for cell in cells)
