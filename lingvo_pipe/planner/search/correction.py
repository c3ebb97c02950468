"""Predictions corrected by real steps, on one device and on all. Pure.

    cells alone   f f f  b b b
    a real step   [ F  B  F  B  F  B ]  norm, update, averages, metrics
                    the operations      the rest

Among others, and beside other devices, a cell takes more or less time than alone. The
rest is a step's time outside the pipeline's operations. How much an allocator loses
depends on the sizes of a model's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from lingvo_pipe.pipeline.memory.stage_memory import ALLOCATOR_LOSS
from lingvo_pipe.pipeline.simulation.costs import fitted_costs, median_costs
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.resources.device_model import Contention
from lingvo_pipe.planner.search.candidate_evaluation import mean_concurrency


class InStep(NamedTuple):
    """What a real step takes, over what its cells take alone.

    Attributes:
        forward, backward: the time of operations over that of their cells.
        rest: seconds outside the operations, without those predicted by bytes.
        concurrency: the mean number of busy devices.
        allocator_loss: see `StageMemory`; None if memory is not measured.
    """

    forward: float = 1.0
    backward: float = 1.0
    rest: float = 0.0
    concurrency: float = 1.0
    allocator_loss: float | None = None


class Correction(NamedTuple):
    """Factors of the time of cells alone, contention, and what the allocator loses."""

    forward: float = 1.0
    backward: float = 1.0
    contention: Contention = Contention()
    allocator_loss: float = ALLOCATOR_LOSS

    def corrected(self, seconds: Sequence[CellSeconds]) -> list[CellSeconds]:
        """Returns the seconds of cells in a step without contention."""
        return [
            CellSeconds(x.forward * self.forward, x.backward * self.backward)
            for x in seconds
        ]


def in_step(
    step_seconds: Sequence[float],
    timelines: Sequence[Timeline],
    alone: Sequence[CellSeconds],
    update: float,
    loss: float | None = None,
) -> InStep:
    """Compares real steps with all cells alone, and with the predicted update."""
    stages = median_costs(list(map(fitted_costs, timelines))).stages
    pairs = zip(step_seconds, timelines, strict=True)
    outside = median(whole - timeline.step_seconds for whole, timeline in pairs)
    return InStep(
        sum(x.forward for x in stages) / sum(x.forward for x in alone),
        sum(x.backward for x in stages) / sum(x.backward for x in alone),
        outside - update,
        median(map(mean_concurrency, timelines)),
        loss,
    )


def correction(
    on_one: InStep | None, on_all: InStep | None, num_devices: int
) -> Correction:
    """Returns what corrects predictions, from steps on one and on all devices.

    Contention slows down devices in proportion to how many others are busy. If one of
    the steps is None, devices are as in the other one.
    """
    known = on_one or on_all or InStep()
    beside = on_all or known
    slowdown = 1.0
    if on_one and beside.concurrency > 1:
        slower = (beside.forward + beside.backward) / (on_one.forward + on_one.backward)
        others = min((beside.concurrency - 1) / (num_devices - 1), 1.0)
        slowdown = max(1 + (slower - 1) / others, 1.0)
    contention = Contention(max(num_devices, 2), slowdown, known.rest, beside.rest)
    loss = ALLOCATOR_LOSS if known.allocator_loss is None else known.allocator_loss
    return Correction(known.forward, known.backward, contention, loss)


def allocator_loss(measured: int, predicted: Callable[[float], int]) -> float:
    """Returns the loss with which the predicted bytes are the measured ones.

    They are linear in the loss, which is a fraction from 0 to 1.
    """
    low, high = predicted(0.0), predicted(1.0)
    return min(max((measured - low) / (high - low), 0.0), 1.0) if high > low else 0.0
