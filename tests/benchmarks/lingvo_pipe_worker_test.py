"""Steps are predicted from the steps before them, and from nothing else."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from tools.benchmarks.lingvo_pipe_worker import prediction_errors

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.

SCHEDULES = [gpipe(2, 4), one_f_one_b(2, 4), zero_bubble(2, 4)]


def _times(schedule: Schedule, seconds: float, start: float = 0.0) -> list[np.ndarray]:
    """Returns times of a step; backward passes take twice as long as forward."""
    costs = Costs((StageCosts(seconds, 2 * seconds),) * schedule.num_stages)
    columns = simulate(schedule, costs).columns
    return [np.array([timed[1:] for timed in column]) + start for column in columns]


def _errors(schedule: Schedule, seconds: list[float]) -> list[float]:
    pipeline: Any = SimpleNamespace(schedule=schedule)
    steps = [_times(schedule, x, start=100 * i) for i, x in enumerate(seconds)]
    return prediction_errors(pipeline, steps)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["gpipe", "1f1b", "zero_bubble"])
def test_errors_are_relative_to_the_steps(schedule: Schedule) -> None:
    seconds = [1.0, 1.0, 2.0, 1.0, 1.0, 0.5, 4.0, 4.0, 4.0]
    # The median of earlier steps is always 1.
    expected = [abs(1 - x) / x for x in seconds[1:]]
    assert _errors(schedule, seconds) == pytest.approx(expected)


def test_only_the_last_five_steps_count() -> None:
    *_, before, last = _errors(gpipe(2, 4), [1.0] * 3 + [2.0] * 4)
    assert before == pytest.approx(0.5)
    assert last == pytest.approx(0)
