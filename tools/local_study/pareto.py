"""Which schemes reach a loss at the least cost and in the least time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Curve = Sequence[tuple[int, float]]


class Point(NamedTuple):
    """What it took to reach a loss.

    Attributes:
        cost: in all.
        time: of the longest chain.
    """

    cost: float
    time: float


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats, by ascending cost and so by descending time.

    One beats another that is at most as good in both, and differs from it.
    """
    kept: list[Point] = []
    for point in sorted(set(points)):
        if not kept or point.time < kept[-1].time:
            kept.append(point)
    return kept


def first_step(curve: Curve, target: float) -> int | None:
    """The first step at which the loss was at most the target; None: there is none.

    Args:
        curve: steps, ascending, and losses at them.
        target: the loss to reach.
    """
    return next((step for step, loss in curve if loss <= target), None)


def choose_targets(curves: Mapping[str, Sequence[Curve]]) -> list[float]:
    """Three losses to compare schemes by, the easiest first.

    The lowest that every scheme has reached after a quarter of its records, the lowest
    that every scheme reaches at all, and half-way, on a logarithmic scale, from there
    to the lowest of all.

    Args:
        curves: of each scheme, at least one; losses are positive.
    """
    early = max(
        _lowest([curve[: math.ceil(len(curve) / 4)] for curve in own])
        for own in curves.values()
    )
    best = [_lowest(own) for own in curves.values()]
    shared = max(best)
    return [early, shared, math.sqrt(shared * min(best))]


def _lowest(curves: Sequence[Curve]) -> float:
    return min(loss for curve in curves for _, loss in curve)
