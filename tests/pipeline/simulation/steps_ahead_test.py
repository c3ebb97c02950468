from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.local import local
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.steps_ahead import steps_ahead


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
