from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts

F, R, B, W, U = Kind


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
def test_what_is_not_given_follows_from_the_rest(
    costs: StageCosts, seconds: dict[Kind, float]
) -> None:
    assert {kind: costs.seconds(kind, split=True) for kind in Kind} == seconds
    assert costs.seconds(B) == 3.0


def test_a_backward_pass_costs_less_where_weights_come_later() -> None:
    costs = Costs((StageCosts(1.0, 3.0),) * 2)
    assert costs.seconds(gpipe(2, 2), Op(B, 0, 1)) == 3.0
    assert costs.seconds(zero_bubble(2, 2), Op(B, 0, 1)) == 1.5


def test_activations_and_gradients_travel_at_their_own_pace() -> None:
    costs = Costs((StageCosts(1.0, send_forward=0.25, send_backward=0.5),))
    assert costs.send_seconds(Op(F, 0, 0)) == 0.25
    assert costs.send_seconds(Op(B, 0, 0)) == 0.5
