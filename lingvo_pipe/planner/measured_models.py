"""A model's costs by rows, with how long its cells take on a device that is there.

    rows         1      2      4      8      16     32
    measured     x                    x             x
    searched     the best way has micro-batches of 4 rows, by what lies between 1 and 8
    measured                   x
    searched     the best way has them still: done

Tracing and measuring take seconds for each size. So few are measured at first, and
then those that seem best, until the best is one that was measured.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.model_costs import ModelCosts, at_rows
from lingvo_pipe.planner.planning import Resources, allowed_candidates, plan
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.slowdown import measured_slowdown
from lingvo_pipe.planner.traced_model import ModelTracer

_Measured = tuple[ModelCosts, Sequence[CellSeconds]]


class MeasuredModels:
    """`Models` of which some sizes are measured, and those between interpolated.

    Args:
        tracer: of the model.
        device: full name of where its cells are timed.
    """

    def __init__(self, tracer: ModelTracer, device: str):
        self._tracer, self._device = tracer, device
        self._measured: dict[int, _Measured] = {}
        self._traced = functools.cache(
            functools.partial(tracer.trace, counts_flops=False)
        )

    def __call__(self, num_rows: int) -> _Measured:
        """See `search.Models`; of sizes that were not measured by those about them."""
        if num_rows in self._measured:
            return self._measured[num_rows]
        sizes = sorted(self._measured)
        if len(sizes) == 1:
            return self._measured[sizes[0]]
        place = bisect.bisect(sizes[1:-1], num_rows)
        low, high = sizes[place : place + 2]
        (a, a_seconds), (b, b_seconds) = self._measured[low], self._measured[high]
        share = (num_rows - low) / (high - low)
        seconds = [
            CellSeconds(*(x + share * (y - x) for x, y in zip(one, other, strict=True)))
            for one, other in zip(a_seconds, b_seconds, strict=True)
        ]
        return at_rows(a, b, num_rows), seconds

    def measure(self, num_rows: int) -> bool:
        """Times the cells for micro-batches of b rows; returns whether that was new."""
        if num_rows in self._measured:
            return False
        traced = self._traced(num_rows)
        seconds = measured_seconds(traced.stage_calls, traced.specs, self._device)
        *cells, last, loss = seconds
        both = CellSeconds(last.forward + loss.forward, last.backward + loss.backward)
        self._measured[num_rows] = traced.costs, [*cells, both]
        return True

    def slowdown(self, num_rows: int, devices: Sequence[str]) -> float:
        """See `measured_slowdown`, for micro-batches of b rows."""
        return measured_slowdown(self._traced(num_rows), devices)


def plan_measured(
    tracer: ModelTracer,
    devices: Sequence[str],
    resources: Resources,
    constraints: Constraints,
) -> Found:
    """Finds the fastest ways to run a model on devices that are there.

    Args:
        tracer: of the model.
        devices: full names.
        resources: the same, as measured.
        constraints: what is settled already.

    Raises:
        ValueError: as of `plan`.
    """
    models, batch_size = MeasuredModels(tracer, devices[0]), resources.batch_size
    allowed = allowed_candidates(resources, constraints, tracer.num_cells)
    sizes = sorted({batch_size // each.num_micro_batches for each in allowed})
    middle = sizes[len(sizes) // 2]
    for size in {sizes[0], middle, sizes[-1]}:
        models.measure(size)
    resources = resources.slowed(models.slowdown(middle, devices))
    while True:
        found = plan(models, resources, constraints)
        best = found.fastest[0].candidate
        if not models.measure(batch_size // best.num_micro_batches):
            return found
