"""Contention slows devices down by how many compute at a time."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.pipeline.simulation.contention import busy_shares
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import Contention, DeviceModel
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
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
    devices = range(num_devices)
    before, after = (sum(map(x.busy_seconds, devices)) for x in (alone, busy))
    others = (n * num_replicas - 1 for n in range(1, num_devices + 1))
    factors = [1 + 2 * min(each / (most - 1), 1) for each in others]
    shares = zip(busy_shares(busy), factors, strict=True)
    assert after * sum(x / factor for x, factor in shares) == pytest.approx(before)
    assert (after > before) == (num_replicas * num_devices > 1)


@pytest.mark.parametrize(
    ("num_replicas", "num_devices", "more"),
    [(1, 1, 2.0), (1, 2, 3.0), (1, 3, 4.0), (2, 2, 5.0), (1, 5, 6.0), (2, 3, 6.0)],
)
def test_each_device_adds_equal_seconds_to_the_rest(
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
