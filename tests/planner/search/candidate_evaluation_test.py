"""Contention slows devices down by how many compute at a time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import Contention, DeviceModel
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    evaluate,
    mean_concurrency,
)
from tests.planner.made_up_model import made_up_device, made_up_models

ALONE = made_up_device(10**6)


def evaluated(num_replicas: int, num_devices: int, device: DeviceModel) -> Evaluation:
    candidate = Candidate(num_replicas, num_devices, 1, 8, "1f1b", "never")
    found = evaluate(candidate, *made_up_models(ALONE)(1), device)
    assert isinstance(found, Evaluation)
    return found


def with_contention(*values: float) -> DeviceModel:
    return dataclasses.replace(ALONE, contention=Contention(*values))  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [2, 3, 5, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_each_busy_device_adds_equal_slowdown(
    num_replicas: int, num_devices: int, most: int
) -> None:
    """Beyond the measured number of devices it stays constant."""
    alone = evaluated(num_replicas, num_devices, ALONE).timeline
    busy = evaluated(num_replicas, num_devices, with_contention(most, 3.0)).timeline
    others = mean_concurrency(alone) * num_replicas - 1
    factor = 1 + 2 * min(others / (most - 1), 1)
    found = busy.busy_seconds(0) / alone.busy_seconds(0)
    assert found == pytest.approx(factor)
    assert (found > 1) == (num_replicas * num_devices > 1)


@pytest.mark.parametrize(
    ("num_replicas", "num_devices", "more"),
    [(1, 1, 2.0), (1, 2, 3.0), (1, 3, 4.0), (2, 2, 5.0), (1, 5, 6.0), (2, 3, 6.0)],
)
def test_each_device_adds_equal_update_seconds(
    num_replicas: int, num_devices: int, more: float
) -> None:
    alone = evaluated(num_replicas, num_devices, ALONE)
    spread = evaluated(num_replicas, num_devices, with_contention(5, 1.0, 2.0, 6.0))
    assert spread.timeline == alone.timeline
    assert spread.step_seconds == pytest.approx(alone.step_seconds + more)


def test_resources_take_measured_contention() -> None:
    contention = Contention(4, 2.0)
    resources = Resources(ALONE, 4, 8).with_contention(contention)
    assert resources.device.contention == contention


def timeline(*columns: Sequence[tuple[float, float]]) -> Timeline:
    """Returns a timeline of devices with these start and end times."""
    return Timeline(
        tuple(
            tuple(TimedOp(Op(Kind.FORWARD, i, 0), 0.0, *x) for i, x in enumerate(each))
            for each in columns
        )
    )


def test_mean_concurrency() -> None:
    assert mean_concurrency(timeline([(0, 10)])) == 1
    assert mean_concurrency(timeline([(0, 10)], [(3, 13)])) == pytest.approx(1.7)
    assert mean_concurrency(timeline([(0, 5)], [(5, 10)])) == 1
    assert mean_concurrency(timeline([(0, 5), (5, 10)], [(0, 10)], [(0, 10)])) == 3
    assert mean_concurrency(timeline([(0, 0)], [])) == 1


def test_mean_concurrency_is_that_of_brute_force() -> None:
    rng = random.Random(0)
    for _ in range(50):
        moments = [sorted(rng.sample(range(40), 6)) for _ in range(4)]
        columns = [list(zip(each[::2], each[1::2], strict=True)) for each in moments]
        at = [
            sum(a <= now < b for column in columns for a, b in column)
            for now in range(40)
        ]
        expected = sum(n**2 for n in at) / sum(at)
        assert mean_concurrency(timeline(*columns)) == pytest.approx(expected)
