"""Schemes that reach a loss at minimum cost or in minimum time. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tools.local_study.costs import Point
from tools.local_study.study_rows import Average, Curve


class Reached(NamedTuple):
    """A loss that batches of one size reached, with cost and time of the steps."""

    batch_size: int
    num_steps: int  # As exact as the records are frequent.
    point: Point


def reached_losses(found: Sequence[Average]) -> dict[float, dict[str, list[Reached]]]:
    """Returns, by test loss and scheme, the batch sizes on the frontier, by cost."""
    by_scheme: dict[str, list[Average]] = {}
    for each in found:
        by_scheme.setdefault(each.scheme, []).append(each)
    curves = {scheme: list(map(_curve, own)) for scheme, own in by_scheme.items()}
    return {
        target: {scheme: _best(own, target) for scheme, own in by_scheme.items()}
        for target in choose_targets(curves)
    }


def frontier(points: Iterable[Point]) -> list[Point]:
    """Returns the points that no other beats in cost and time, by ascending cost."""
    found: list[Point] = []
    for point in sorted(set(points)):
        if not found or point.time < found[-1].time:
            found.append(point)
    return found


def first_step(curve: Curve, target: float) -> int | None:
    """Returns the first step at which the loss is at most the target, if any."""
    return next((step for step, loss in curve if loss <= target), None)


def choose_targets(curves: Mapping[str, Sequence[Curve]]) -> list[float]:
    """Returns three losses to compare schemes by, the easiest first.

    They are the lowest that every scheme reaches in a quarter of its records, the
    lowest that all reach, and the geometric mean of that and the lowest of all.
    """

    def lowest(fraction: float) -> list[float]:
        return [
            min(loss for x in own for _, loss in x[: math.ceil(len(x) * fraction)])
            for own in curves.values()
        ]

    shared, best = max(lowest(1)), min(lowest(1))
    return [max(lowest(1 / 4)), shared, math.sqrt(shared * best)]


def _best(own: Sequence[Average], target: float) -> list[Reached]:
    reached: dict[Point, Reached] = {}
    for each in own:
        if (step := first_step(_curve(each), target)) is not None:
            point = each.row.point(step)
            reached.setdefault(point, Reached(each.batch_size, step, point))
    return [reached[point] for point in frontier(reached)]


def _curve(each: Average) -> Curve:
    """Returns the test loss without the record before training, which costs nothing."""
    return each.test_curve("loss")[1:]
