"""Corrections of the planner's predictions, computed from timed real steps.

    cells alone   f f f  b b b
    a real step   [ F  B  F  B  F  B ]  norm, update, averages, metrics
                    the operations      the rest

In a step, a cell takes more or less time than alone, because other cells run before it
and other devices run at the same time. The rest is a step's time outside the pipeline's
operations. The memory that an allocator loses is measured too, because it depends on
the model's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from lingvo_pipe.pipeline.memory.stage_memory import ALLOCATOR_LOSS
from lingvo_pipe.pipeline.simulation.contention import busy_shares
from lingvo_pipe.pipeline.simulation.costs import fitted_costs, median_costs
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.resources.device_model import Contention

_PRECISION = 1e-4


class InStep(NamedTuple):
    """The times and the memory of a real step.

    Attributes:
        forward, backward: seconds of a micro-batch's pass through all stages.
        rest: seconds outside the operations, less the predicted seconds of the update.
        busy: entry n - 1 is the share of the devices' busy time in which n are busy.
        allocator_loss: tensors that come and go take 1 + this loss times their size.
            None if memory is not measured.
    """

    forward: float
    backward: float
    rest: float
    busy: Sequence[float]
    allocator_loss: float | None = None


class Correction(NamedTuple):
    """Corrections of predictions. `forward` and `backward` multiply the cells' seconds.

    `contention` and `allocator_loss` replace the values that the planner assumes.
    """

    forward: float = 1.0
    backward: float = 1.0
    contention: Contention = Contention()
    allocator_loss: float = ALLOCATOR_LOSS

    def corrected(self, seconds: Sequence[CellSeconds]) -> list[CellSeconds]:
        """Returns the seconds of cells in a step, from their seconds alone."""
        return [
            CellSeconds(x.forward * self.forward, x.backward * self.backward)
            for x in seconds
        ]


def in_step(
    step_seconds: Sequence[float],
    timelines: Sequence[Timeline],
    update: float,
    loss: float | None = None,
) -> InStep:
    """Returns the medians over measured steps.

    `update` is the predicted seconds of an update, and `loss` the allocator loss.
    """
    stages = median_costs(list(map(fitted_costs, timelines))).stages
    pairs = zip(step_seconds, timelines, strict=True)
    outside = median(total - timeline.step_seconds for total, timeline in pairs)
    return InStep(
        sum(stage.forward for stage in stages),
        sum(stage.backward for stage in stages),
        outside - update,
        [median(shares) for shares in zip(*map(busy_shares, timelines), strict=True)],
        loss,
    )


def correction(
    alone: Sequence[CellSeconds],
    on_one: InStep | None,
    on_all: InStep | None,
    num_devices: int,
) -> Correction | None:
    """Returns the correction of the cells' seconds `alone`, from real steps.

    `on_one` is a step on one device, and `on_all` a step on all devices. If one of the
    two is None, the other one replaces it. Returns None if both are None.
    """
    on_fewest = on_one or on_all
    if on_fewest is None:
        return None
    on_most = on_all or on_fewest
    slowdown = 1.0
    if on_one and on_all:
        slower = (on_all.forward + on_all.backward) / (on_one.forward + on_one.backward)
        slowdown = _slowdown(slower, on_all.busy)
    contention = Contention(max(num_devices, 2), slowdown, on_fewest.rest, on_most.rest)
    loss = on_fewest.allocator_loss
    return Correction(
        on_fewest.forward / sum(cell.forward for cell in alone),
        on_fewest.backward / sum(cell.backward for cell in alone),
        contention,
        ALLOCATOR_LOSS if loss is None else loss,
    )


def _slowdown(slower: float, busy: Sequence[float]) -> float:
    """Returns the factor by which cells slow down while all devices are busy.

    `slower` is the measured factor, averaged over a step in which the number of busy
    devices varies. For `busy` see `InStep`. The factor is assumed to grow linearly from
    1 for one busy device to the result for all. The result is chosen so that
    1 / factor, averaged over the busy time, equals 1 / `slower`. It is at most the
    number of devices, as if they took turns.
    """

    def work(most: float) -> float:
        contention = Contention(max(len(busy), 2), most)
        factors = (contention.slowdown_at(n) for n in range(1, len(busy) + 1))
        return sum(x / factor for x, factor in zip(busy, factors, strict=True))

    low, high = 1.0, float(len(busy))
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if work(middle) * slower > 1 else (low, middle)
    return low


def allocator_loss(measured: int, predicted: Callable[[float], int]) -> float:
    """Returns the allocator loss for which predicted and measured bytes are equal.

    `predicted(loss)` returns bytes, and must be linear in the loss. The result is
    limited to values from 0 to 1.
    """
    low, high = predicted(0.0), predicted(1.0)
    return min(max((measured - low) / (high - low), 0.0), 1.0) if high > low else 0.0
