"""How devices that compute at a time slow one another down."""

from __future__ import annotations

import dataclasses

import pytest

from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.resources import Resources
from tests.planner.made_up_model import made_up_device, made_up_models

ALONE = made_up_device(10**6)


def busy_by_alone(
    num_replicas: int, num_devices: int, slowdown: float, slowed_by: int
) -> float:
    """What devices compute for, by what they did if none slowed another down."""
    way = Candidate(num_replicas, num_devices, 1, 8, "1f1b", "never")
    device = dataclasses.replace(ALONE, slowdown=slowdown, slowed_by=slowed_by)
    seconds = []
    for each in (device, ALONE):
        found = evaluate(way, *made_up_models(ALONE)(1), each)
        assert isinstance(found, Evaluated)
        seconds.append(found.timeline.busy_seconds(0))
    return seconds[0] / seconds[1]


@pytest.mark.parametrize(
    ("num_replicas", "num_devices", "slowed_by", "factor"),
    [
        (1, 1, 5, 1.0),
        (1, 2, 5, 1.5),
        (1, 3, 5, 2.0),
        (2, 2, 5, 2.5),
        (1, 5, 5, 3.0),
        (2, 3, 5, 3.0),  # No more is known than of all that there were.
        (1, 1, 0, 1.0),
        (1, 2, 0, 3.0),
        (1, 5, 0, 3.0),
        (1, 2, 1, 3.0),
    ],
)
def test_each_device_more_slows_down_as_much(
    num_replicas: int, num_devices: int, slowed_by: int, factor: float
) -> None:
    found = busy_by_alone(num_replicas, num_devices, 3.0, slowed_by)
    assert found == pytest.approx(factor)


def test_resources_say_of_how_many_devices_it_is() -> None:
    slowed = Resources(ALONE, 4, 8).slowed(2.0).device
    assert (slowed.slowdown, slowed.slowed_by) == (2.0, 4)
