"""Devices that slow each other down do the same work, later."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.contention import (
    busy_shares,
    simulate_with_contention,
)
from lingvo_pipe.pipeline.simulation.costs import Costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule

SEEDS = range(40)


def slowdown(number: int) -> float:
    return 1 + (number - 1) / 2


def moments(timeline: Timeline) -> list[list[float]]:
    return [[x.wait_start, x.start, x.end] for _, x in timeline.ops()]


def drawn(seed: int) -> tuple[Schedule, Costs]:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    return schedule, random_costs(rng, schedule.num_stages)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_if_all_is_slowed_down_alike_operations_cost_more(
    factor: float, seed: int
) -> None:
    """Without slowdown it is the plain simulation."""
    schedule, costs = drawn(seed)
    found = simulate_with_contention(schedule, costs, lambda _: factor)
    assert found.schedule == schedule
    expected = moments(simulate(schedule, slower(costs, factor)))
    assert moments(found) == [pytest.approx(each) for each in expected]


def slower(costs: Costs, factor: float) -> Costs:
    """Returns costs with longer operations; messages stay."""
    sends = ("send_forward", "send_backward")
    stages = []
    for stage in costs.stages:
        values = {
            name: value
            for name, value in vars(stage).items()
            if value is not None and name not in sends
        }
        more = {name: factor * value for name, value in values.items()}
        stages.append(dataclasses.replace(stage, **more))
    return Costs(tuple(stages), costs.overhead)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_operation_does_its_work(seed: int) -> None:
    """Brute force over the moments at which the number of busy devices changes."""
    schedule, costs = drawn(seed)
    found = simulate_with_contention(schedule, costs, slowdown)
    ops = [timed for _, timed in found.ops()]
    times = sorted({t for timed in ops for t in (timed.start, timed.end)})
    owners = schedule.device_of_stage()
    ends = {timed.op: timed.end for timed in ops}
    work = dict.fromkeys(ends, 0.0)
    for a, b in itertools.pairwise(times):
        running = [t for t in ops if t.start <= a and b <= t.end]
        for timed in running:
            work[timed.op] += (b - a) / slowdown(len(running))
    for device, timed in found.ops():
        assert work[timed.op] == pytest.approx(costs.seconds(schedule, timed.op))
        needs = schedule.dependencies(timed.op)
        sent = (costs.send_seconds(x) * (owners[x.stage] != device) for x in needs)
        arrivals = [ends[x] + y for x, y in zip(needs, sent, strict=True)]
        assert timed.start == max([timed.wait_start, *arrivals])


def timeline(*columns: Sequence[tuple[float, float]]) -> Timeline:
    """Returns a timeline of devices with these start and end times."""
    return Timeline(
        tuple(
            tuple(TimedOp(Op(Kind.FORWARD, i, 0), 0.0, *x) for i, x in enumerate(each))
            for each in columns
        )
    )


def test_shares_of_busy_time() -> None:
    assert busy_shares(timeline([(0, 10)])) == [1]
    assert busy_shares(timeline([(0, 10)], [(3, 13)])) == pytest.approx([0.3, 0.7])
    assert busy_shares(timeline([(0, 5)], [(5, 10)])) == [1, 0]
    assert busy_shares(timeline([(0, 5), (5, 9)], [(0, 9)], [(0, 9)])) == [0, 0, 1]
    assert busy_shares(timeline([(0, 0)], [])) == [1, 0]


def test_shares_of_busy_time_are_those_of_brute_force() -> None:
    rng = random.Random(0)
    for _ in range(50):
        times = [sorted(rng.sample(range(40), 6)) for _ in range(4)]
        columns = [list(zip(each[::2], each[1::2], strict=True)) for each in times]
        at = [
            sum(a <= now < b for column in columns for a, b in column)
            for now in range(40)
        ]
        expected = [n * at.count(n) / sum(at) for n in range(1, 5)]
        assert busy_shares(timeline(*columns)) == pytest.approx(expected)
