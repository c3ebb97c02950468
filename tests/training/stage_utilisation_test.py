"""How busy stages are: what the timeline's bubble leaves, where it is known."""

import numpy as np
import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.interleaved import interleaved
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.training.stage_utilisation import stage_utilisation
from lingvo_pipe.training.step_profile import measured_timeline


def times_of(timeline, clock=0.0):
    """What the devices' loops would have noted."""
    return [
        np.array([timed[1:] for timed in column]) + clock for column in timeline.columns
    ]


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(1, 2),
        gpipe(3, 4),
        one_f_one_b(3, 4),
        zero_bubble(2, 4),
        interleaved(2, 4, 2),
    ],
)
def test_it_is_what_the_bubble_leaves(schedule):
    stages = [StageCosts(1.0 + k, 2.0, send_forward=0.5) for k in range(8)]
    costs = Costs(tuple(stages[: schedule.num_stages]), overhead=0.125)
    times = times_of(simulate(schedule, costs), clock=1e6)
    devices = [f"cpu:{device}" for device in range(len(schedule.columns))]
    bubble = measured_timeline(schedule, times).bubble_fraction
    assert stage_utilisation(devices, times) == pytest.approx(1 - bubble, rel=1e-9)


def test_equal_stages_are_busy_as_gpipes_formula_says():
    """M / (M + K - 1), Huang et al. 2019, section 2.3."""
    timeline = simulate(gpipe(4, 8), Costs((StageCosts(1.0, 2.0),) * 4))
    got = stage_utilisation([f"cpu:{k}" for k in range(4)], times_of(timeline))
    assert got == pytest.approx(8 / (8 + 4 - 1))


@pytest.mark.parametrize(
    ("devices", "is_known"),
    [
        (["cpu:0", "/job:localhost/replica:0/task:0/device:CPU:1"], True),
        (["worker:1/cpu:0", "worker:1/cpu:1"], True),
        (["worker:0/cpu:0", "worker:1/cpu:0"], False),
        (["cpu:0", "worker:0/cpu:0"], False),
        (["cpu:0", "gpu:0"], False),
        (["gpu:0", "gpu:1"], False),
    ],
)
def test_it_is_known_of_processors_by_one_clock(devices, is_known):
    timeline = simulate(gpipe(2, 4), Costs((StageCosts(1.0, 2.0),) * 2))
    assert (stage_utilisation(devices, times_of(timeline)) is not None) == is_known


def test_a_clock_that_was_set_meanwhile_says_nothing():
    times = np.array([[10.0, 10.5, 12.0], [13.0, 14.0, 15.0]])
    assert stage_utilisation(["cpu:0"], [times]) == pytest.approx(2.5 / 5)
    for moment in range(1, times.size):
        later = np.arange(times.size).reshape(times.shape) >= moment
        assert stage_utilisation(["cpu:0"], [times - 100.0 * later]) is None


def test_steps_too_short_for_the_clock_say_nothing():
    assert stage_utilisation(["cpu:0"], [np.full([2, 3], 5.0)]) is None
