from __future__ import annotations

import dataclasses
import random

import pytest

from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.median_costs import median_costs
from tests.pipeline.simulation.random_schedules import random_costs


def _scaled(costs: Costs, factor: float) -> Costs:
    stages = [
        {k: v and v * factor for k, v in dataclasses.asdict(stage).items()}
        for stage in costs.stages
    ]
    return Costs(
        tuple(StageCosts(**stage) for stage in stages), costs.overhead * factor
    )


@pytest.mark.parametrize("seed", range(10))
def test_slow_and_fast_steps_change_nothing_while_they_are_few(seed: int) -> None:
    rng = random.Random(seed)
    costs = random_costs(rng, num_stages=3)
    steps = [costs, _scaled(costs, 9.0), costs, _scaled(costs, 0.5), costs]
    rng.shuffle(steps)
    assert median_costs(steps) == costs


def test_each_cost_is_a_median_of_its_own() -> None:
    steps = [
        Costs((StageCosts(1.0, 9.0, send_forward=3.0),), overhead=1.0),
        Costs((StageCosts(2.0, 7.0, send_forward=5.0),), overhead=2.0),
    ]
    assert median_costs(steps) == Costs(
        (StageCosts(1.5, 8.0, send_forward=4.0),), overhead=1.5
    )
