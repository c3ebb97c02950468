"""A model's costs by rows, with how long its cells take on a device that is there.

    rows         1      2      4      8      16     32
    traced       x                                  x      a device can't hold 32
    measured     x                    x      x
    searched     the best way has micro-batches of 4 rows, by what lies between 1 and 8
    measured                   x
    searched     the best way has them still: done

Tracing and measuring take seconds for each size. So few are measured at first, and
then those that seem best, until the best is one that was measured. What a size needs
goes by what is traced, which takes no memory.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.measured_company import measured_company
from lingvo_pipe.planner.model_costs import ModelCosts, at_rows
from lingvo_pipe.planner.planning import plan
from lingvo_pipe.planner.resources import Resources, allowed_candidates
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.traced_model import ModelTracer, TracedModel

# Where nothing fits nothing is measured, and none of these times is ever told.
_UNKNOWN = CellSeconds(1.0, 2.0)


class MeasuredModels:
    """`Models` of which some sizes are measured, and those between interpolated.

    Args:
        tracer: of the model.
        device: full name of where its cells are timed.
    """

    def __init__(self, tracer: ModelTracer, device: str):
        self._tracer, self._device = tracer, device
        self._traced: dict[int, TracedModel] = {}
        self._seconds: dict[int, Sequence[CellSeconds]] = {}
        self._too_many_rows: int | None = None
        self._too_many_bytes = 0

    def __call__(self, num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        """See `search.Models`; of sizes that were not measured by those about them."""
        costs = self._costs(num_rows)
        if self.is_ruled_out(num_rows):
            costs = _needing(costs, self._too_many_bytes)
        return costs, self._seconds_of(num_rows)

    @property
    def measured(self) -> list[int]:
        """The sizes that have been, in order."""
        return sorted(self._seconds)

    def trace(self, num_rows: int) -> TracedModel:
        """The model for micro-batches of b rows."""
        if num_rows not in self._traced:
            traced = self._tracer.trace(num_rows, counts_flops=False)
            self._traced[num_rows] = traced
        return self._traced[num_rows]

    def cells_fit(self, num_rows: int, limit: int) -> bool:
        """Whether a device of so many bytes holds each cell by itself."""
        costs = self._costs(num_rows)
        needed = (
            call.weights + call.totals + call.residuals + working
            for call, working in zip(costs.calls, costs.working, strict=True)
        )
        return max(needed) <= limit

    def measure(self, num_rows: int) -> bool:
        """Times the cells for micro-batches of b rows; returns whether that was new.

        Raises:
            tf.errors.OpError: if a cell can't be run on made-up inputs, as for want of
                memory.
        """
        if num_rows in self._seconds:
            return False
        traced = self.trace(num_rows)
        seconds = measured_seconds(traced.stage_calls, traced.specs, self._device)
        *cells, last, loss = seconds
        both = CellSeconds(last.forward + loss.forward, last.backward + loss.backward)
        self._seconds[num_rows] = [*cells, both]
        return True

    def rule_out(self, num_rows: int, limit: int) -> None:
        """Has b rows and more need more than so many bytes, whatever was counted."""
        self._too_many_rows, self._too_many_bytes = num_rows, limit + 1
        for size in [size for size in self._seconds if size >= num_rows]:
            del self._seconds[size]

    def is_ruled_out(self, num_rows: int) -> bool:
        """Whether b rows are too many."""
        return self._too_many_rows is not None and num_rows >= self._too_many_rows

    def company(self, num_rows: int, devices: Sequence[str]) -> Company:
        """See `measured_company`, for micro-batches of b rows that are measured."""
        traced, alone = self.trace(num_rows), self._seconds[num_rows]
        return measured_company(self._tracer, traced, devices, alone)

    def _costs(self, num_rows: int) -> ModelCosts:
        """As they are traced; between traced sizes, by those about them."""
        if num_rows in self._traced or len(self._traced) < 2:
            return self.trace(num_rows).costs
        low, high = _about(sorted(self._traced), num_rows)
        return at_rows(self._traced[low].costs, self._traced[high].costs, num_rows)

    def _seconds_of(self, num_rows: int) -> Sequence[CellSeconds]:
        if num_rows in self._seconds:
            return self._seconds[num_rows]
        if not self._seconds:
            return [_UNKNOWN] * self._tracer.num_cells
        if len(self._seconds) == 1:
            return next(iter(self._seconds.values()))
        low, high = _about(self.measured, num_rows)
        share = (num_rows - low) / (high - low)
        return [
            CellSeconds(*(x + share * (y - x) for x, y in zip(one, other, strict=True)))
            for one, other in zip(self._seconds[low], self._seconds[high], strict=True)
        ]


def plan_measured(
    tracer: ModelTracer,
    devices: Sequence[str],
    resources: Resources,
    constraints: Constraints,
) -> Found:
    """Finds the fastest ways to run a model on devices that are there.

    Sizes of micro-batches of which a device can't hold a single cell are not measured;
    those with which its memory runs out while they are can't be chosen.

    Args:
        tracer: of the model, for these devices.
        devices: full names.
        resources: the same, as measured.
        constraints: what is settled already.

    Raises:
        ValueError: as of `plan`.
    """
    allowed = allowed_candidates(resources, constraints, tracer.num_cells)
    batch_size = resources.batch_size
    sizes = sorted({batch_size // each.num_micro_batches for each in allowed})
    measuring = _Measuring(tracer, devices, resources)
    measuring.begin(sizes)
    resources = resources.in_company(measuring.company())
    while True:
        found = measuring.plan(resources, constraints)
        best = found.fastest[0].candidate
        if not measuring.measure(batch_size // best.num_micro_batches):
            return found


class _Measuring:
    """Measures sizes as far as devices hold them."""

    def __init__(
        self, tracer: ModelTracer, devices: Sequence[str], resources: Resources
    ):
        self._models = MeasuredModels(tracer, devices[0])
        self._devices, self._limit = devices, resources.usable
        self._ran_out = ""

    def begin(self, sizes: Sequence[int]) -> None:
        """Measures the least, a middle and the largest that are held."""
        for size in {sizes[0], sizes[-1]}:
            self._models.trace(size)  # What others need lies on their line.
        held = [each for each in sizes if self._models.cells_fit(each, self._limit)]
        if held:
            for size in sorted({held[0], held[len(held) // 2], held[-1]}):
                self.measure(size)

    def measure(self, num_rows: int) -> bool:
        """Returns whether anything new is known after it."""
        if self._models.is_ruled_out(num_rows):
            return False
        if not self._models.cells_fit(num_rows, self._limit):
            self._models.rule_out(num_rows, self._limit)
            return True
        try:
            return self._models.measure(num_rows)
        except tf.errors.ResourceExhaustedError as error:
            self._rule_out(num_rows, error)
            return True

    def company(self) -> Company:
        """As of the middle of the sizes that are measured."""
        while sizes := self._models.measured:
            middle = sizes[len(sizes) // 2]
            try:
                return self._models.company(middle, self._devices)
            except tf.errors.ResourceExhaustedError as error:
                self._rule_out(middle, error)
        return Company()

    def plan(self, resources: Resources, constraints: Constraints) -> Found:
        """By what is known now; see `plan`."""
        try:
            return plan(self._models, resources, constraints)
        except ValueError as error:
            raise ValueError(f"{error}{self._ran_out}") from error

    def _rule_out(self, num_rows: int, error: tf.errors.OpError) -> None:
        self._models.rule_out(num_rows, self._limit)
        self._ran_out = (
            f" Micro-batches of {num_rows} rows count as too large, for memory ran out "
            f"while they were measured: {error.message}"
        )


def _about(sizes: Sequence[int], num_rows: int) -> Sequence[int]:
    """The two sizes between which a number of rows is, or that are next to it."""
    place = bisect.bisect(sizes[1:-1], num_rows)
    return sizes[place : place + 2]


def _needing(costs: ModelCosts, num_bytes: int) -> ModelCosts:
    """The same, where each cell needs so much to work at least."""
    at_work = [(max((*moments, num_bytes)),) for moments in costs.at_work]
    return dataclasses.replace(costs, at_work=at_work)
