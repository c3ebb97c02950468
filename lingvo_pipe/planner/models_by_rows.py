"""A model's costs for micro-batches of any size, traced for two.

Shapes: b rows in a micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.counted_seconds import counted_seconds
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.model_costs import ModelCosts, at_rows
from lingvo_pipe.planner.search import Models
from lingvo_pipe.planner.traced_model import ModelTracer

# The sizes that are traced. With a single row a dimension of 1 could mean another.
_TRACED = (2, 3)


def counted_models(tracer: ModelTracer, device: DeviceModel, dtype: str) -> Models:
    """By what is to be computed, and how fast the device is said to be.

    Args:
        tracer: of the model.
        device: where cells run.
        dtype: in which they compute.
    """
    costs_of = costs_by_rows(tracer)

    @functools.cache
    def models(num_rows: int) -> tuple[ModelCosts, Sequence[CellSeconds]]:
        costs = costs_of(num_rows)
        return costs, counted_seconds(costs, device, dtype)

    return models


def costs_by_rows(tracer: ModelTracer) -> Callable[[int], ModelCosts]:
    """What is to be computed and kept, by rows of a micro-batch."""
    a, b = (tracer.trace(num_rows).costs for num_rows in _TRACED)
    return functools.partial(at_rows, a, b)
