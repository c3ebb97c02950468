"""Split of the devices' time: computation by kind and idle time by reason.

With K equal stages, free messages and no overhead, GPipe and 1F1B idle
(K - 1) / (M + K - 1) of the time (arXiv 1811.06965, 2.3), because the pipeline has to
fill and to drain. To explain a timeline's other idle time, its schedule is simulated
three times. Each time includes more of the timeline's own costs (`fitted_costs`):

    reason         the device's idle time in                       minus
    fill and drain a step of evened-out stages, free messages      -
    imbalance      a step of the true stages, free messages        the line above
    communication  a step of the true stages and messages          the line above
    overhead       the timeline itself                             the line above

So overhead is the idle time that a schedule and its costs don't explain: work between
operations and, when measured, varying durations. A line that exceeds a later one is
lowered to it. For instance, a device with more than its share of work idles less than
with evened-out stages. So no reason's time is negative, and the reasons add up to the
device's idle time.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts, fitted_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline

Row = tuple[str, ...]  # Name, predicted, measured and difference.
# In the order of the fields of `Idle`.
_IDLE_ROWS = (
    "idle: filling, draining",
    "idle: imbalance",
    "idle: communication",
    "idle: overhead",
)

_NEGLIGIBLE = 1e-9  # In seconds, or as a fraction: too small to measure.


class Idle(NamedTuple):
    """A device's idle seconds by reason (see the top of this file)."""

    fill_drain: float
    imbalance: float
    communication: float
    overhead: float


class TimeSplit(NamedTuple):
    """A device's busy seconds by kind of operation and idle seconds by reason."""

    busy: dict[Kind, float]
    idle: Idle


def split_time(timeline: Timeline) -> list[TimeSplit]:
    """Splits each device's time into busy seconds by kind and idle seconds by reason.

    The seconds of a device add up to the step's time.

    Raises:
        ValueError: if the timeline's operations are not a complete schedule.
    """
    schedule, costs = timeline.schedule, fitted_costs(timeline)
    without_messages = tuple(
        dataclasses.replace(
            stage, send_forward=0.0, send_backward=0.0, offload=0.0, load=0.0
        )
        for stage in costs.stages
    )
    steps = [
        simulate(schedule, _evened_out(schedule, costs)),
        simulate(schedule, Costs(without_messages)),
        simulate(schedule, Costs(costs.stages)),
        timeline,
    ]
    return [
        TimeSplit(
            busy=_busy_by_kind(column),
            idle=_idle_by_reason([step.idle_seconds(device) for step in steps]),
        )
        for device, column in enumerate(timeline.columns)
    ]


def _evened_out(schedule: Schedule, costs: Costs) -> Costs:
    """Returns costs with the same total, but equal for all operations of a kind."""
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
    """Returns idle seconds by reason. `idle` is column 2 of the file's table."""
    lines = list(itertools.accumulate(reversed(idle), min))[::-1]
    return Idle(*(line - less for less, line in itertools.pairwise([0.0, *lines])))


def compare(predicted: Timeline, measured: Timeline) -> str:
    """Returns a table of predicted and measured times, for each device and the mean.

    Busy times are listed by kind of operation, and idle times by reason. The last
    column is how much a measured time exceeds the predicted one.

    Raises:
        ValueError: if the timelines have different schedules.
    """
    if predicted.schedule != measured.schedule:
        raise UserValueError(
            path="measured",
            expected="the operations of the predicted timeline, in their order",
        )
    splits = [_seconds_by_name(timeline) for timeline in (predicted, measured)]
    bubbles = predicted.bubble_fraction, measured.bubble_fraction
    rows = [
        ("", "predicted", "measured", "difference"),
        _seconds_row("step", predicted.step_seconds, measured.step_seconds),
        ("bubble", *(f"{bubble:.1%}" for bubble in bubbles), _difference(*bubbles)),
        *_block("mean of the devices", *map(_mean, splits)),
    ]
    for device, of_device in enumerate(zip(*splits, strict=True)):
        rows += _block(f"device {device}", *of_device)
    return "\n".join(text_table(rows, right=(1, 2, 3))) + "\n"


def _seconds_by_name(timeline: Timeline) -> list[dict[str, float]]:
    return [
        {kind.label: seconds for kind, seconds in split.busy.items()}
        | dict(zip(_IDLE_ROWS, split.idle, strict=True))
        for split in split_time(timeline)
    ]


def _mean(devices: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for seconds in devices for name in seconds)
    return {
        name: fmean(seconds.get(name, 0.0) for seconds in devices) for name in names
    }


def _block(
    title: str, predicted: dict[str, float], measured: dict[str, float]
) -> list[Row]:
    rows = (_seconds_row(f"  {x}", predicted[x], measured[x]) for x in measured)
    return [("", "", "", ""), (title, "", "", ""), *rows]


def _seconds_row(name: str, predicted: float, measured: float) -> Row:
    texts = (f"{seconds * 1e3:.3f} ms" for seconds in (predicted, measured))
    return (name, *texts, _difference(predicted, measured))


def _difference(predicted: float, measured: float) -> str:
    return "" if predicted < _NEGLIGIBLE else f"{measured / predicted - 1:+.1%}"
