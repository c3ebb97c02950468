from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, zero_bubble
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import (
    Costs,
    StageCosts,
    fitted_costs,
    median_costs,
)
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule

F, R, B, W, U, *_ = Kind
Row = tuple[int, Op, float, float, float]


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        (StageCosts(1.0, 3.0), {F: 1.0, R: 1.0, B: 1.5, W: 1.5, U: 0.0}),
        (
            StageCosts(
                1.0,
                3.0,
                recompute=0.5,
                input_gradient=1.25,
                weight_gradient=2.5,
                update=0.25,
            ),
            {F: 1.0, R: 0.5, B: 1.25, W: 2.5, U: 0.25},
        ),
        (StageCosts(1.0, 3.0, recompute=0.0), {F: 1.0, R: 0.0, B: 1.5, W: 1.5, U: 0.0}),
    ],
)
def test_costs_that_are_none_follow_from_others(
    costs: StageCosts, seconds: dict[Kind, float]
) -> None:
    want = seconds | dict.fromkeys(COPIES, 0.0)
    assert {kind: costs.seconds(kind, split=True) for kind in Kind} == want
    assert costs.seconds(B) == 3.0


def test_a_backward_pass_costs_less_without_weight_gradients() -> None:
    costs = Costs((StageCosts(1.0, 3.0),) * 2)
    assert costs.seconds(gpipe(2, 2), Op(B, 0, 1)) == 3.0
    assert costs.seconds(zero_bubble(2, 2), Op(B, 0, 1)) == 1.5


def test_activations_and_gradients_have_their_own_delays() -> None:
    costs = Costs((StageCosts(1.0, send_forward=0.25, send_backward=0.5),))
    assert costs.send_seconds(Op(F, 0, 0)) == 0.25
    assert costs.send_seconds(Op(B, 0, 0)) == 0.5


def _scaled(costs: Costs, factor: float) -> Costs:
    stages = [
        {k: v and v * factor for k, v in dataclasses.asdict(stage).items()}
        for stage in costs.stages
    ]
    return Costs(
        tuple(StageCosts(**stage) for stage in stages), costs.overhead * factor
    )


@pytest.mark.parametrize("seed", range(10))
def test_few_slow_or_fast_steps_do_not_change_the_median(seed: int) -> None:
    rng = random.Random(seed)
    costs = random_costs(rng, num_stages=3)
    steps = [costs, _scaled(costs, 9.0), costs, _scaled(costs, 0.5), costs]
    rng.shuffle(steps)
    assert median_costs(steps) == costs


def test_each_cost_has_its_own_median() -> None:
    steps = [
        Costs((StageCosts(1.0, 9.0, send_forward=3.0),), overhead=1.0),
        Costs((StageCosts(2.0, 7.0, send_forward=5.0),), overhead=2.0),
    ]
    assert median_costs(steps) == Costs(
        (StageCosts(1.5, 8.0, send_forward=4.0),), overhead=1.5
    )


@pytest.mark.parametrize("seed", range(60))
def test_fitted_costs_explain_a_simulated_timeline(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    timeline = simulate(schedule, random_costs(rng, schedule.num_stages))
    again = simulate(schedule, fitted_costs(timeline))
    for (_, ours), (_, theirs) in zip(again.ops(), timeline.ops(), strict=True):
        assert ours[1:] == pytest.approx(theirs[1:])


@pytest.mark.parametrize("generate", [gpipe, zero_bubble])
def test_costs_are_found_again(generate: Callable[[int, int], Schedule]) -> None:
    stages = (StageCosts(1.0, 2.0), StageCosts(1.5, 3.0), StageCosts(0.5, 5.0))
    costs = Costs(stages, overhead=0.125)
    fitted = fitted_costs(simulate(generate(3, 5), costs))
    assert fitted.overhead == pytest.approx(0.125)
    for found, true in zip(fitted.stages, stages, strict=True):
        for kind in Kind:
            for split in (False, True):
                assert found.seconds(kind, split=split) == pytest.approx(
                    true.seconds(kind, split=split)
                )


def test_costs_of_copies_are_found_again() -> None:
    stages = (StageCosts(1.0, 2.0, offload=4.0, load=5.0),) * 2
    schedule = offloaded(gpipe(2, 9))
    fitted = fitted_costs(simulate(schedule, Costs(stages)))
    assert fitted.stages == stages


def test_a_wait_for_a_copy_is_no_message() -> None:
    """It was fitted as a message from the stage after."""
    stages = StageCosts(1.0, 2.0, offload=1.0, load=30.0), StageCosts(1.0, 2.0)
    schedule = offloaded(gpipe(2, 9))
    fitted = fitted_costs(simulate(schedule, Costs(stages)))
    assert [stage.send_backward for stage in fitted.stages] == [0.0, 0.0]


def test_a_message_takes_the_median_of_awaited_ones() -> None:
    rows: list[Row] = []
    for m, delay in enumerate([0.25, 0.5, 7.0]):
        sent = 10.0 * m + 1
        rows += [
            (0, Op(Kind.FORWARD, m, 0), sent - 1, sent - 1, sent),
            (1, Op(Kind.FORWARD, m, 1), sent, sent + delay, sent + delay + 1),
        ]
    rows += _late_message(3, waited=1.0)
    assert fitted_costs(Timeline.from_rows(rows)).stages[0].send_forward == 0.5


@pytest.mark.parametrize(("waits", "fitted"), [([2.0, 1.0], 61.0), ([0.0], 0.0)])
def test_a_message_that_nobody_awaited_takes_the_least_noticed_delay(
    waits: list[float], fitted: float
) -> None:
    rows = [
        row for m, waited in enumerate(waits) for row in _late_message(m, waited=waited)
    ]
    assert fitted_costs(Timeline.from_rows(rows)).stages[0].send_forward == fitted


def _late_message(micro_batch: int, waited: float) -> list[Row]:
    """Returns rows of a message whose receiver is busy for a minute after its send."""
    sent = 100.0 * micro_batch
    start = sent + 60 + waited
    return [
        (0, Op(Kind.FORWARD, micro_batch, 0), sent - 1, sent - 1, sent),
        (1, Op(Kind.FORWARD, micro_batch, 1), sent + 60, start, start + 1),
    ]
