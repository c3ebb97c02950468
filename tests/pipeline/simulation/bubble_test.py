from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.simulation.bubble import Idle, compare, split_time
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from tests.pipeline.simulation.random_schedules import (
    disturbed,
    random_costs,
    random_schedule,
)
from tests.support.errors import fails

COMPARED = gpipe(2, 3)
EVEN = simulate(COMPARED, Costs((StageCosts(0.010, 0.020),) * 2))
SCHEDULES = {
    "gpipe": gpipe(3, 6),
    "1f1b": recomputed(one_f_one_b(3, 6), "always"),
    "interleaved": interleaved(3, 6, 2),
    "zero bubble": zero_bubble(3, 6),
}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_measured", [False, True])
def test_no_part_is_negative_and_they_add_up(seed: int, is_measured: bool) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng, offloads=seed % 2 == 1)
    timeline = simulate(schedule, random_costs(rng, schedule.num_stages))
    if is_measured:
        timeline = disturbed(timeline, rng)
    for device, split in enumerate(split_time(timeline)):
        busy, idle = split.busy.values(), split.idle
        assert min(*busy, *idle) >= 0
        assert sum(busy) == pytest.approx(timeline.busy_seconds(device))
        assert sum([*busy, *idle]) == pytest.approx(timeline.step_seconds)


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
@pytest.mark.parametrize("num_micro_batches", [1, 3, 8, 32])
@pytest.mark.parametrize("generate", [gpipe, one_f_one_b])
def test_equal_stages_idle_the_closed_form(
    generate: Callable[[int, int], Schedule], num_stages: int, num_micro_batches: int
) -> None:
    schedule = generate(num_stages, num_micro_batches)
    timeline = simulate(schedule, Costs((StageCosts(1.0, 2.0),) * num_stages))
    fraction = (num_stages - 1) / (num_micro_batches + num_stages - 1)
    for split in split_time(timeline):
        assert split.busy == {
            Kind.FORWARD: num_micro_batches,
            Kind.BACKWARD: 2 * num_micro_batches,
        }
        assert _is(split.idle, fill_drain=fraction * timeline.step_seconds)


def _is(
    idle: Idle,
    fill_drain: float = 0.0,
    imbalance: float = 0.0,
    communication: float = 0.0,
    overhead: float = 0.0,
) -> bool:
    parts = (fill_drain, imbalance, communication, overhead)
    return tuple(idle) == pytest.approx(parts, abs=1e-9)


def _parts(schedule: Schedule, costs: Costs) -> tuple[Timeline, list[Idle]]:
    timeline = simulate(schedule, costs)
    return timeline, [split.idle for split in split_time(timeline)]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_each_cause_shows_in_its_own_part(schedule: Schedule) -> None:
    equal = StageCosts(1.0, 2.0, recompute=0.75, input_gradient=1.25)
    even = Costs((equal,) * schedule.num_stages)
    bare_step, bare = _parts(schedule, even)
    assert all(_is(idle, fill_drain=idle.fill_drain) for idle in bare)

    slow_messages = dataclasses.replace(equal, send_forward=0.5, send_backward=0.25)
    step, with_messages = _parts(schedule, Costs((slow_messages,) * len(even.stages)))
    added = step.step_seconds - bare_step.step_seconds
    assert step.step_seconds > bare_step.step_seconds
    for before, idle in zip(bare, with_messages, strict=True):
        assert _is(idle, fill_drain=before.fill_drain, communication=added)

    step, with_overhead = _parts(schedule, dataclasses.replace(even, overhead=0.125))
    added = step.step_seconds - bare_step.step_seconds
    for before, idle in zip(bare, with_overhead, strict=True):
        assert _is(idle, fill_drain=before.fill_drain, overhead=added)

    slow_stage = dataclasses.replace(equal, forward=1.5, backward=3.0)
    uneven = Costs((slow_stage, *even.stages[1:]))
    step, with_slow_stage = _parts(schedule, uneven)
    for device, idle in enumerate(with_slow_stage):
        assert idle.communication == idle.overhead == pytest.approx(0.0)
        assert (idle.imbalance > 1.0) == (device != 0)


def _rows(table: str, title: str) -> dict[str, list[str]]:
    """Returns the rows of a block: from their names to the words after them."""
    lines = table.split(f"{title}\n")[1].split("\n\n")[0].splitlines()
    cells = (re.split(r"\s{2,}", line.strip()) for line in lines)
    return {name: values for name, *values in cells}


def test_the_table() -> None:
    stages = (StageCosts(0.010, 0.020), StageCosts(0.015, 0.020, send_backward=0.001))
    table = compare(EVEN, simulate(COMPARED, Costs(stages)))
    assert [line.split() for line in table.splitlines()[:3]] == [
        ["predicted", "measured", "difference"],
        ["step", "120.000", "ms", "136.000", "ms", "+13.3%"],
        ["bubble", "25.0%", "28.3%", "+13.2%"],
    ]
    assert _rows(table, "device 1") == {
        "forward": ["30.000 ms", "45.000 ms", "+50.0%"],
        "backward": ["60.000 ms", "60.000 ms", "+0.0%"],
        "idle: filling, draining": ["30.000 ms", "30.000 ms", "+0.0%"],
        "idle: imbalance": ["0.000 ms", "0.000 ms"],
        "idle: communication": ["0.000 ms", "1.000 ms"],
        "idle: overhead": ["0.000 ms", "0.000 ms"],
    }
    mean = _rows(table, "mean of the devices")
    assert mean["forward"] == ["30.000 ms", "37.500 ms", "+25.0%"]
    assert list(mean) == list(_rows(table, "device 0"))


def test_other_schedules_are_refused() -> None:
    other = simulate(one_f_one_b(2, 3), Costs((StageCosts(0.010, 0.020),) * 2))
    with fails(path="measured"):
        compare(EVEN, other)
