"""How devices that compute at a time slow one another down."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from lingvo_pipe.planner.busy_devices import busy_devices
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.company import Company
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


def in_company(*values: float) -> DeviceModel:
    return dataclasses.replace(ALONE, company=Company(*values))  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [2, 3, 5, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_each_device_that_is_busy_slows_down_as_much(
    num_replicas: int, num_devices: int, most: int
) -> None:
    """No more is known than of all that there were."""
    alone = evaluated(num_replicas, num_devices, ALONE).timeline
    busy = evaluated(num_replicas, num_devices, in_company(most, 3.0)).timeline
    others = busy_devices(alone) * num_replicas - 1
    factor = 1 + 2 * min(others / (most - 1), 1)
    found = busy.busy_seconds(0) / alone.busy_seconds(0)
    assert found == pytest.approx(factor)
    assert (found > 1) == (num_replicas * num_devices > 1)


@pytest.mark.parametrize(
    ("num_replicas", "num_devices", "more"),
    [(1, 1, 2.0), (1, 2, 3.0), (1, 3, 4.0), (2, 2, 5.0), (1, 5, 6.0), (2, 3, 6.0)],
)
def test_each_device_has_an_update_take_as_much_longer(
    num_replicas: int, num_devices: int, more: float
) -> None:
    alone = evaluated(num_replicas, num_devices, ALONE)
    spread = evaluated(num_replicas, num_devices, in_company(5, 1.0, 2.0, 6.0))
    assert spread.timeline == alone.timeline
    assert spread.step_seconds == pytest.approx(alone.step_seconds + more)


def test_resources_know_what_was_found_of_them() -> None:
    company = Company(4, 2.0)
    assert Resources(ALONE, 4, 8).in_company(company).device.company == company


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
