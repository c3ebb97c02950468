"""How devices that compute at a time slow one another down."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from lingvo_pipe.planner.busy_devices import busy_devices
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.device_model import DeviceModel
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.resources import Resources
from tests.planner.made_up_model import made_up_device, made_up_models

ALONE = made_up_device(10**6)


def evaluated(num_replicas: int, num_devices: int, device: DeviceModel) -> Evaluated:
    way = Candidate(num_replicas, num_devices, 1, 8, "1f1b", "never")
    found = evaluate(way, *made_up_models(ALONE)(1), device)
    assert isinstance(found, Evaluated)
    return found


@pytest.mark.parametrize("slowed_by", [2, 3, 5, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_each_device_that_is_busy_slows_down_as_much(
    num_replicas: int, num_devices: int, slowed_by: int
) -> None:
    """No more is known than of all that there were."""
    alone = evaluated(num_replicas, num_devices, ALONE).timeline
    busy = evaluated(num_replicas, num_devices, ALONE.slowed(3.0, slowed_by)).timeline
    others = busy_devices(alone) * num_replicas - 1
    factor = 1 + 2 * min(others / (slowed_by - 1), 1)
    found = busy.busy_seconds(0) / alone.busy_seconds(0)
    assert found == pytest.approx(factor)
    assert (found > 1) == (num_replicas * num_devices > 1)


def test_devices_that_slow_nothing_down_stay_alone() -> None:
    slowed = ALONE.slowed(1.0, 1)
    assert evaluated(1, 2, slowed).timeline == evaluated(1, 2, ALONE).timeline


def test_resources_say_of_how_many_devices_it_is() -> None:
    slowed = Resources(ALONE, 4, 8).slowed(2.0).device
    assert (slowed.slowdown, slowed.slowed_by) == (2.0, 4)


def timeline(*columns: Sequence[tuple[float, float]]) -> Timeline:
    """Of devices that compute from when to when."""
    return Timeline(
        tuple(
            tuple(TimedOp(Op(Kind.FORWARD, i, 0), 0.0, *x) for i, x in enumerate(each))
            for each in columns
        )
    )


def test_devices_that_compute_at_a_time_are_counted() -> None:
    assert busy_devices(timeline([(0, 10)])) == 1
    assert busy_devices(timeline([(0, 10)], [(3, 13)])) == pytest.approx(1.7)
    assert busy_devices(timeline([(0, 5)], [(5, 10)])) == 1
    assert busy_devices(timeline([(0, 5), (5, 10)], [(0, 10)], [(0, 10)])) == 3
    assert busy_devices(timeline([(0, 0)], [])) == 1


def test_as_many_are_counted_as_by_brute_force() -> None:
    rng = random.Random(0)
    for _ in range(50):
        ends = [sorted(rng.sample(range(40), 6)) for _ in range(4)]
        columns = [list(zip(each[::2], each[1::2], strict=True)) for each in ends]
        at = [
            sum(a <= moment < b for column in columns for a, b in column)
            for moment in range(40)
        ]
        want = sum(n**2 for n in at) / sum(at)
        assert busy_devices(timeline(*columns)) == pytest.approx(want)
