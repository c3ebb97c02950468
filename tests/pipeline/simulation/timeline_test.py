from __future__ import annotations

import random

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import local
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD, Kind, Op
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline, steps_ahead
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule
from tests.support.errors import fails

F0, F1 = Op(Kind.FORWARD, 0, 0), Op(Kind.FORWARD, 1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_order_and_of_any_clock_give_the_timeline(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    costs = random_costs(rng, schedule.num_stages)
    timeline = simulate(schedule, costs)
    clock = 1000.0 - costs.overhead
    rows = [
        (device, op, clock + wait_start, clock + start, clock + end)
        for device, (op, wait_start, start, end) in timeline.ops()
    ]
    rng.shuffle(rows)
    shifted = Timeline.from_rows(rows)
    assert shifted.schedule == schedule
    for (_, ours), (_, theirs) in zip(shifted.ops(), timeline.ops(), strict=True):
        assert ours[1:] == tuple(time - costs.overhead for time in theirs[1:])


def test_busy_and_idle_seconds() -> None:
    timeline = Timeline.from_rows(
        [(0, F0, 5.0, 5.0, 6.0), (0, F1, 6.5, 7.0, 9.0), (1, F0, 5.0, 6.0, 7.0)]
    )
    assert timeline.step_seconds == 4.0
    assert [timeline.busy_seconds(device) for device in (0, 1)] == [3.0, 1.0]
    assert [timeline.idle_seconds(device) for device in (0, 1)] == [1.0, 3.0]
    assert timeline.bubble_fraction == 0.5
    assert timeline.columns[0][1] == TimedOp(F1, 1.5, 2.0, 4.0)


def test_a_step_in_which_nothing_ran() -> None:
    timeline = Timeline.from_rows([])
    assert timeline.step_seconds == timeline.bubble_fraction == 0.0
    assert timeline.schedule.num_devices == 0


@pytest.mark.parametrize(
    "times",
    [(1.5, 2.0, 3.0), (3.0, 2.5, 4.0), (2.0, 4.0, 3.0)],
    ids=["overlapping", "started before waiting", "ended before starting"],
)
def test_contradictory_times_are_named(times: tuple[float, float, float]) -> None:
    rows = [(0, F0, 0.0, 1.0, 2.0), (0, F1, *times)]
    with fails(path="device 0", got="{:g}, {:g} and {:g} s".format(*times)) as error:
        Timeline.from_rows(rows)
    assert str(F1) in error.value.expected


@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [
        ([1.0, 1.0, 1.0], {0: 1, 1: 1}),
        ([1.0, 9.0, 1.0], {0: MAX_STEPS_AHEAD, 1: 0}),
        ([1.0, 1.0, 9.0], {0: MAX_STEPS_AHEAD, 1: MAX_STEPS_AHEAD}),
    ],
)
def test_a_block_is_ahead_of_a_slower_one(
    num_micro_batches: int, seconds: list[float], ahead: dict[int, int]
) -> None:
    schedule = several_steps(local(3, num_micro_batches, [0, 1]), 12)
    costs = Costs(tuple(StageCosts(forward=s, backward=s, update=s) for s in seconds))
    assert steps_ahead(simulate(schedule, costs)) == ahead
