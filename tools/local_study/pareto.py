"""A search for trainings that reach a test loss at minimum cost or time. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tools.local_study.costs import Point
from tools.local_study.study_rows import Average, Curve


class Reached(NamedTuple):
    """The steps, cost and time in which training with a batch size reaches a loss."""

    batch_size: int
    num_steps: int  # The more frequent the records are, the more exact.
    point: Point


def reached_losses(found: Sequence[Average]) -> dict[float, dict[str, list[Reached]]]:
    """Returns the Pareto frontier by test loss and scheme, sorted by cost."""
    by_scheme: dict[str, list[Average]] = {}
    for average in found:
        by_scheme.setdefault(average.scheme, []).append(average)
    curves = {
        scheme: [average.trained_curve("loss") for average in averages]
        for scheme, averages in by_scheme.items()
    }
    return {
        target: {
            scheme: _best(averages, target) for scheme, averages in by_scheme.items()
        }
        for target in choose_targets(curves)
    }


def frontier(points: Iterable[Point]) -> list[Point]:
    """Returns the points that no other point beats in both values, sorted by cost."""
    unbeaten: list[Point] = []
    for point in sorted(set(points)):
        if not unbeaten or point.time < unbeaten[-1].time:
            unbeaten.append(point)
    return unbeaten


def first_step(curve: Curve, target: float) -> int | None:
    """Returns the first step with a loss of at most `target`, or None."""
    return next((step for step, loss in curve if loss <= target), None)


def choose_targets(curves: Mapping[str, Sequence[Curve]]) -> list[float]:
    """Returns three losses to compare schemes by, the easiest first.

    The first is the lowest loss that every scheme reaches in a quarter of its records.
    The second is the lowest loss that every scheme reaches. The third is the geometric
    mean of the second and the lowest loss of any scheme.
    """

    def lowest(fraction: float) -> list[float]:
        return [
            min(
                loss
                for curve in scheme_curves
                for _, loss in curve[: math.ceil(len(curve) * fraction)]
            )
            for scheme_curves in curves.values()
        ]

    shared, best = max(lowest(1)), min(lowest(1))
    return [max(lowest(1 / 4)), shared, math.sqrt(shared * best)]


def _best(averages: Sequence[Average], target: float) -> list[Reached]:
    reached: dict[Point, Reached] = {}
    for average in averages:
        if (step := first_step(average.trained_curve("loss"), target)) is not None:
            point = average.row.point(step)
            reached.setdefault(point, Reached(average.batch_size, step, point))
    return [reached[point] for point in frontier(reached)]
