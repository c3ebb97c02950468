"""Devices that share a memory need at most the sum of their peaks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lingvo_pipe.pipeline.memory.stage_memory import OperationBytes
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.planner.costs.joint_peak import joint_peak


def timeline_of(schedule: Schedule) -> Timeline:
    stage = StageCosts(
        forward=1.0,
        backward=2.5,
        input_gradient=1.0,
        weight_gradient=1.5,
        send_forward=0.25,
        send_backward=0.25,
    )
    return simulate(schedule, Costs((stage,) * schedule.num_stages, overhead=0.01))


def at(
    time: float, devices: list[list[OperationBytes]], timeline: Timeline
) -> list[int]:
    """Returns each device's bytes at a time within an operation, or between two."""
    found = []
    for own, column in zip(devices, timeline.columns, strict=True):
        number = own[0].after
        for used, timed in zip(own[1:], column, strict=True):
            if timed.start <= time:
                number = used.during if time < timed.end else used.after
        found.append(number)
    return found


@pytest.mark.parametrize("schedule_name", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_most_at_any_time(schedule_name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = make_schedule(schedule_name, 3, 4, 1, "never")
    timeline = timeline_of(schedule)
    devices = [
        [OperationBytes(*sorted(pair, reverse=True)) for pair in own]
        for own in rng.integers(1, 1000, [3, len(timeline.columns[0]) + 1, 2]).tolist()
    ]
    devices = [[own[0]._replace(during=own[0].after), *own[1:]] for own in devices]
    times = sorted(t for _, x in timeline.ops() for t in (x.start, x.end))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(times) if b > a]
    found = joint_peak(devices, timeline)
    assert found == max(sum(at(t, devices, timeline)) for t in [-1.0, *middles])
    assert found <= sum(max(x.during for x in own) for own in devices)


def test_one_device_has_its_own_peak() -> None:
    schedule = make_schedule("1f1b", 1, 2, 1, "never")
    own = [OperationBytes(9 * i, 5) for i in range(1, 6)]
    own[0] = OperationBytes(5, 5)
    assert joint_peak([own], timeline_of(schedule)) == 45
