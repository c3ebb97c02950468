from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.fitted_costs import fitted_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule

Row = tuple[int, Op, float, float, float]


@pytest.mark.parametrize("seed", range(60))
def test_they_explain_a_simulated_timeline(seed: int) -> None:
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


def test_a_message_takes_the_median_of_those_that_were_waited_for() -> None:
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
def test_what_no_device_waited_for_takes_no_longer_than_was_noticed(
    waits: list[float], fitted: float
) -> None:
    rows = [
        row for m, waited in enumerate(waits) for row in _late_message(m, waited=waited)
    ]
    assert fitted_costs(Timeline.from_rows(rows)).stages[0].send_forward == fitted


def _late_message(micro_batch: int, waited: float) -> list[Row]:
    """One whose receiver has other things to do for a minute after it is sent."""
    sent = 100.0 * micro_batch
    start = sent + 60 + waited
    return [
        (0, Op(Kind.FORWARD, micro_batch, 0), sent - 1, sent - 1, sent),
        (1, Op(Kind.FORWARD, micro_batch, 1), sent + 60, start, start + 1),
    ]
