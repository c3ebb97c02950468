"""The costs that explain a measured timeline. Pure."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, median

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.timeline import Timeline


def fitted_costs(timeline: Timeline) -> Costs:
    """Estimates costs from a timeline; from a simulated one, costs that give it again.

    Operations of a stage cost their mean. A message takes the median of the delays
    after which it reached a device that had waited since before it was sent. If none
    had, it takes the least delay after which it reached one that waited at all; and if
    none did that either, it counts as free, since nobody noticed its way.
    """
    seconds: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for _, timed in timeline.ops():
        seconds[timed.op.kind, timed.op.stage].append(timed.seconds)
    delays = _message_delays(timeline)

    def stage_costs(stage: int) -> StageCosts:
        mean = {
            kind: fmean(seconds[kind, stage]) for kind in Kind if seconds[kind, stage]
        }
        backward = mean.get(Kind.BACKWARD, 0.0)
        weight_gradient = mean.get(Kind.WEIGHT_GRADIENT)
        split = weight_gradient is not None
        return StageCosts(
            forward=mean.get(Kind.FORWARD, 0.0),
            backward=backward + (weight_gradient or 0.0),
            recompute=mean.get(Kind.RECOMPUTE),
            input_gradient=backward if split else None,
            weight_gradient=weight_gradient,
            update=mean.get(Kind.UPDATE, 0.0),
            send_forward=delays.get((Kind.FORWARD, stage), 0.0),
            send_backward=delays.get((Kind.BACKWARD, stage), 0.0),
        )

    num_stages = timeline.schedule.num_stages
    gaps = _gaps(timeline)
    return Costs(
        stages=tuple(map(stage_costs, range(num_stages))),
        overhead=fmean(gaps) if gaps else 0.0,
    )


def _message_delays(timeline: Timeline) -> dict[tuple[Kind, int], float]:
    """By the kind and stage of the sender; those that are not free."""
    schedule = timeline.schedule
    homes = schedule.device_of_stage()
    ends = {timed.op: timed.end for _, timed in timeline.ops()}
    expected: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    noticed: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for device, (op, wait_start, start, _) in timeline.ops():
        for need in schedule.dependencies(op):
            if homes[need.stage] == device:
                continue
            delay = start - ends[need]
            if wait_start <= ends[need]:
                expected[need.kind, need.stage].append(delay)
            elif wait_start < start:
                noticed[need.kind, need.stage].append(delay)
    return {sender: min(delays) for sender, delays in noticed.items()} | {
        sender: median(delays) for sender, delays in expected.items()
    }


def _gaps(timeline: Timeline) -> list[float]:
    """What passed before each operation without work and without waiting."""
    gaps = []
    for column in timeline.columns:
        free = 0.0
        for timed in column:
            gaps.append(timed.wait_start - free)
            free = timed.end
    return gaps
