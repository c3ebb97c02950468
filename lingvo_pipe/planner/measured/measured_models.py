"""Plans for a model from the measured seconds of its cells.

    rows         1      2      4      8      16     32
    traced       x                                  x      a device cannot hold 32
    measured     x             x             x
    searched     the best has micro-batches of 8 rows, by the times for 4 and 16
    measured                          x
    searched     the best still has 8 rows: done

A size is the number of rows in a micro-batch. To measure a size takes seconds. So at
first few sizes are measured, and then each size that seems best, until the best size
is one that was measured before. Tracing gives memory needs.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.memory.call_bytes import Workspace
from lingvo_pipe.pipeline.memory.stage_memory import ALLOCATOR_LOSS
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.planner.costs.flops_time_model import stage_seconds
from lingvo_pipe.planner.costs.model_costs import ModelCosts, at_rows
from lingvo_pipe.planner.costs.traced_model import ModelTracer, TracedModel
from lingvo_pipe.planner.measured.real_steps import measured_correction
from lingvo_pipe.planner.resources.resources import (
    Constraints,
    Resources,
    allowed_candidates,
)
from lingvo_pipe.planner.search.correction import Correction
from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.planner.search.fitting_plan import NothingFits, plan

# The times of cells if no size fits, so that none is measured. No user sees them.
_UNKNOWN = CellSeconds(1.0, 2.0)
_UNLIMITED = 1 << 60


class MeasuredModels:
    """A function from the rows of a micro-batch to costs and to cells' seconds.

    Cells are timed on a device for some sizes, which are numbers of rows. Seconds for
    other sizes are interpolated. If memory runs out for a size, this size and all
    larger ones are ruled out. Their bytes then count as above `limit`.
    """

    def __init__(self, tracer: ModelTracer, device: str, limit: int = _UNLIMITED):
        self._tracer, self._device, self._limit = tracer, device, limit
        self._traced: dict[int, TracedModel] = {}
        self._seconds: dict[int, Sequence[CellSeconds]] = {}
        self._min_oversized = math.inf  # This many rows or more are ruled out.
        self._correction = Correction()
        self._known: dict[Any, ModelCosts] = {}
        self.out_of_memory = ""  # A sentence for errors, if memory ran out.

    def __call__(self, num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        """Returns the model's costs and its cells' seconds, corrected by real steps."""
        return self._corrected_costs(num_rows), self._correction.corrected(
            self._seconds_of(num_rows)
        )

    def trace(self, num_rows: int) -> TracedModel:
        if num_rows not in self._traced:
            traced = self._tracer.trace(num_rows, counts_flops=False)
            if device_name(self._device).has_host_memory:
                costs = traced.costs.without_host
                traced = dataclasses.replace(traced, costs=costs)
            self._traced[num_rows] = traced
        return self._traced[num_rows]

    def cells_fit(self, num_rows: int) -> bool:
        """Returns whether the device has memory for each cell, if it holds only one."""
        memory = self._costs(num_rows).memory
        calls = itertools.pairwise(range(self._tracer.num_cells + 2))
        return max(memory.minimum(*call) for call in calls) <= self._limit

    def measure(self, num_rows: int) -> bool:
        """Times the cells for a size. Returns False if they were timed before.

        Raises:
            tf.errors.OpError: if a cell does not run, such as for lack of memory.
        """
        if num_rows in self._seconds:
            return False
        traced = self.trace(num_rows)
        seconds = measured_seconds(traced.layers, traced.specs, self._device)
        # The loss is with the last cell.
        self._seconds[num_rows] = [*seconds[:-2], stage_seconds(seconds[-2:])]
        return True

    def measure_or_rule_out(self, num_rows: int) -> bool:
        """Times the cells for a size, or rules the size out if memory does not suffice.

        Returns False if the size was timed or ruled out before.
        """
        if num_rows >= self._min_oversized:
            return False
        if not self.cells_fit(num_rows):
            self._rule_out(num_rows)
            return True
        try:
            return self.measure(num_rows)
        except tf.errors.ResourceExhaustedError as error:
            self._rule_out(num_rows, error)
            return True

    def correct(self, devices: Sequence[str], resources: Resources) -> Resources:
        """Times real training steps, by which later costs and seconds are corrected.

        The steps have micro-batches of the middle one of the measured sizes. If no step
        runs with this size, the next smaller measured size is tried. Returns
        `resources` with the contention that the steps showed.
        """
        sizes = sorted(self._seconds)
        for size in reversed(sizes[: len(sizes) // 2 + 1]):
            costs, seconds = self._costs(size), self._seconds[size]
            device = resources.limited_devices[0]
            try:
                correction = measured_correction(
                    self._tracer, devices, costs, seconds, device, resources.uses_all
                )
            except tf.errors.ResourceExhaustedError as error:
                self._rule_out(size, error)
                continue
            if correction is not None:
                if resources.memory_limit is not None:  # PeakBytes knows no other loss.
                    correction = correction._replace(allocator_loss=ALLOCATOR_LOSS)
                self._correction = correction
                break
        contention = self._correction.contention
        kind = dataclasses.replace(resources.devices[0], contention=contention)
        return resources.of_kind(kind)

    def _rule_out(self, num_rows: int, error: tf.errors.OpError | None = None) -> None:
        self._min_oversized = num_rows
        self._seconds = {n: x for n, x in self._seconds.items() if n < num_rows}
        if error:
            self.out_of_memory = (
                f" Micro-batches of {num_rows} rows count as too large, because memory "
                f"ran out while they were measured: {error.message}"
            )

    def _corrected_costs(self, num_rows: int) -> ModelCosts:
        is_oversized = num_rows >= self._min_oversized
        costs, loss = self._costs(num_rows), self._correction.allocator_loss
        key = num_rows, is_oversized, loss, len(self._traced)
        if key not in self._known:  # A search asks again and again.
            if is_oversized:
                above = Workspace(forward=(self._limit + 1,))
                calls = [call._replace(workspace=above) for call in costs.calls]
                costs = dataclasses.replace(costs, calls=calls)
            self._known[key] = dataclasses.replace(costs, allocator_loss=loss)
        return self._known[key]

    def _costs(self, num_rows: int) -> ModelCosts:
        if num_rows in self._traced or len(self._traced) < 2:
            return self.trace(num_rows).costs
        low, high = _neighbors(self._traced, num_rows)
        return at_rows(self._traced[low].costs, self._traced[high].costs, num_rows)

    def _seconds_of(self, num_rows: int) -> Sequence[CellSeconds]:
        if num_rows in self._seconds:
            return self._seconds[num_rows]
        if len(self._seconds) < 2:
            unknown = [_UNKNOWN] * self._tracer.num_cells
            return next(iter(self._seconds.values()), unknown)
        low, high = _neighbors(self._seconds, num_rows)
        a, b = np.array([self._seconds[low], self._seconds[high]])
        between = a + (num_rows - low) / (high - low) * (b - a)
        return list(itertools.starmap(CellSeconds, between.tolist()))


def plan_measured(
    tracer: ModelTracer,
    devices: Sequence[str],
    resources: Resources,
    constraints: Constraints,
) -> SearchResult:
    """Finds the fastest ways to run a model, from times measured on the devices.

    Sizes for which a device cannot hold each cell alone are not measured.
    """
    allowed = allowed_candidates(resources, constraints, tracer.num_cells)
    batch_size = resources.batch_size
    sizes = sorted({batch_size // x.num_micro_batches for x in allowed})
    models = MeasuredModels(tracer, devices[0], resources.usable_bytes)
    for size in {sizes[0], sizes[-1]}:
        models.trace(size)  # The needs of other sizes are interpolated.
    if fitting := [size for size in sizes if models.cells_fit(size)]:
        for size in sorted({fitting[0], fitting[len(fitting) // 2], fitting[-1]}):
            models.measure_or_rule_out(size)
    resources = models.correct(devices, resources)
    while True:
        try:
            result = plan(models, resources, constraints)
        except NothingFits as error:
            raise NothingFits(f"{error}{models.out_of_memory}") from error
        best = result.fastest[0].candidate
        if not models.measure_or_rule_out(batch_size // best.num_micro_batches):
            return result


def _neighbors(sizes: Iterable[int], num_rows: int) -> Sequence[int]:
    """Returns the sizes around `num_rows`, or the nearest two if it is outside them."""
    in_order = sorted(sizes)
    index = bisect.bisect(in_order[1:-1], num_rows)
    return in_order[index : index + 2]
