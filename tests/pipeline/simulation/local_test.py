"""Blocks with losses of their own: the bubble is the way of the first activations."""

from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate

FORWARD, BACKWARD = 1.0, 2.0


@pytest.mark.parametrize("num_stages", [1, 2, 5])
@pytest.mark.parametrize("num_micro_batches", [1, 4, 16])
def test_the_step_is_as_long_as_the_facts_say(
    num_stages: int, num_micro_batches: int
) -> None:
    ends = range(num_stages - 1)
    schedule = make_schedule(
        "local", num_stages, num_micro_batches, recompute="never", block_ends=ends
    )
    costs = Costs((StageCosts(FORWARD, BACKWARD),) * num_stages)
    timeline = simulate(schedule, costs)
    assert timeline.schedule == schedule
    # The last stage's first inputs have gone through F of the first stage, and then
    # each one's own B stands before the next F.
    work = num_micro_batches * (FORWARD + BACKWARD)
    assert timeline.step_seconds == (num_stages - 1) * FORWARD + work


def test_gradients_that_go_back_take_longer() -> None:
    costs = Costs((StageCosts(FORWARD, BACKWARD),) * 4)
    seconds = {
        name: simulate(
            make_schedule(name, 4, 8, recompute="never", block_ends=ends), costs
        ).step_seconds
        for name, ends in [("local", [0, 1, 2]), ("1f1b", []), ("gpipe", [])]
    }
    assert seconds["local"] < seconds["1f1b"] == seconds["gpipe"]
