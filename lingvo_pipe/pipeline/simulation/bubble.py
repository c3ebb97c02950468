"""Where the devices' time goes: what keeps them busy, and why they idle. Pure.

With K equal stages, free messages and no overhead, GPipe and 1F1B idle
(K - 1) / (M + K - 1) of the time, because the pipeline has to fill and to drain. Why a
timeline idles more is told apart by simulating its schedule three times, with ever more
of its own costs (`fitted_costs`):

    part           the device's idle time in                       less
    fill and drain a step of evened-out stages, free messages      -
    imbalance      a step of the true stages, free messages        the line above
    communication  a step of the true stages and messages          the line above
    overhead       the timeline itself                             the line above

So overhead is what a schedule and its costs don't explain: work between operations and,
when measured, durations that vary. No line counts for more than the next one, since a
device can't idle more for one reason than for all: a device with more than its share of
work idles less than evened-out stages would, and that is less filling and draining. The
parts are therefore never negative, and add up to the device's idle time.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from statistics import fmean

from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.fitted_costs import fitted_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline


@dataclasses.dataclass(frozen=True)
class Idle:
    """Why a device idled, in seconds; see the top of this file."""

    fill_drain: float
    imbalance: float
    communication: float
    overhead: float


@dataclasses.dataclass(frozen=True)
class TimeSplit:
    """Where a device's time went during a step, in seconds.

    Attributes:
        busy: what it computed, by kind; those that it ran.
        idle: the rest of the step, by reason.
    """

    busy: dict[Kind, float]
    idle: Idle


def split_time(timeline: Timeline) -> list[TimeSplit]:
    """Splits the step's time on each device; the parts add up to the step's time.

    Raises:
        ValueError: if what ran is not a whole schedule.
    """
    schedule, costs = timeline.schedule, fitted_costs(timeline)
    steps = [
        simulate(schedule, _evened_out(schedule, costs)),
        simulate(schedule, _computation(costs)),
        simulate(schedule, dataclasses.replace(costs, overhead=0.0)),
        timeline,
    ]
    return [
        TimeSplit(
            busy=_busy_by_kind(column),
            idle=_idle_by_reason([step.idle_seconds(device) for step in steps]),
        )
        for device, column in enumerate(timeline.columns)
    ]


def _computation(costs: Costs) -> Costs:
    """Without messages and overhead."""
    stages = tuple(
        dataclasses.replace(stage, send_forward=0.0, send_backward=0.0)
        for stage in costs.stages
    )
    return Costs(stages)


def _evened_out(schedule: Schedule, costs: Costs) -> Costs:
    """As much computation in all, operations of one kind costing the same."""
    seconds: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    for _, op in schedule.ops():
        seconds[op.kind].append(costs.seconds(schedule, op))
    mean = {kind: fmean(values) if values else 0.0 for kind, values in seconds.items()}
    stage = StageCosts(
        forward=mean[Kind.FORWARD],
        backward=mean[Kind.BACKWARD],
        recompute=mean[Kind.RECOMPUTE],
        input_gradient=mean[Kind.BACKWARD],
        weight_gradient=mean[Kind.WEIGHT_GRADIENT],
        update=mean[Kind.UPDATE],
    )
    return Costs((stage,) * len(costs.stages))


def _busy_by_kind(column: tuple[TimedOp, ...]) -> dict[Kind, float]:
    busy: dict[Kind, float] = defaultdict(float)
    for timed in column:
        busy[timed.op.kind] += timed.seconds
    return {kind: busy[kind] for kind in Kind if kind in busy}


def _idle_by_reason(idle: list[float]) -> Idle:
    """From the idle seconds of the four lines, which are first made to ascend."""
    lines = list(itertools.accumulate(reversed(idle), min))[::-1]
    return Idle(*(line - less for less, line in itertools.pairwise([0.0, *lines])))
