"""What it took each scheme to reach losses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tools.local_study.averages import Average
from tools.local_study.pareto import Curve, Point, choose_targets, first_step, frontier

_LOSS = "loss"


class Reached(NamedTuple):
    """A loss that was reached.

    Attributes:
        batch_size: with batches of which size.
        num_steps: after how many steps, as far as there are records.
        point: what these took.
    """

    batch_size: int
    num_steps: int
    point: Point


def reached_losses(found: Sequence[Average]) -> dict[float, dict[str, list[Reached]]]:
    """By test loss and scheme: the batch sizes on the frontier, by ascending cost.

    A scheme that never had a loss has no batch sizes there.
    """
    schemes = list(dict.fromkeys(each.scheme for each in found))
    curves = {
        scheme: [_trained_curve(each) for each in found if each.scheme == scheme]
        for scheme in schemes
    }
    return {
        target: {
            scheme: _best([each for each in found if each.scheme == scheme], target)
            for scheme in schemes
        }
        for target in choose_targets(curves)
    }


def _best(own: Sequence[Average], target: float) -> list[Reached]:
    """Of one scheme's batch sizes, those that no other beats."""
    reached = []
    for each in own:
        step = first_step(_trained_curve(each), target)
        if step is not None:
            reached.append(Reached(each.batch_size, step, each.point(step)))
    best = frontier(one.point for one in reached)
    return [next(one for one in reached if one.point == point) for point in best]


def _trained_curve(each: Average) -> Curve:
    """Without the record before training: what nothing is paid for reaches nothing."""
    return each.test_curve(_LOSS)[1:]
