"""Frontiers agree with all pairs; target losses agree with curves by hand."""

from __future__ import annotations

import random

import pytest

from tools.local_study.costs import Point
from tools.local_study.pareto import choose_targets, first_step, frontier

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.


def _beats(a: Point, b: Point) -> bool:
    return a != b and a.cost <= b.cost and a.time <= b.time


@pytest.mark.parametrize("seed", range(30))
def test_no_other_point_beats_those_of_the_frontier(seed: int) -> None:
    chooser = random.Random(seed)
    points = [
        Point(chooser.randint(0, 9), chooser.randint(0, 9))
        for _ in range(chooser.randint(0, 12))
    ]
    unbeaten = {p for p in points if not any(_beats(other, p) for other in points)}
    assert frontier(points) == sorted(unbeaten)


def test_the_first_step_at_most_at_a_loss() -> None:
    curve = [(0, 3.0), (5, 1.0), (10, 2.0), (15, 0.5)]
    assert first_step(curve, 3.5) == 0
    assert first_step(curve, 1.0) == 5
    assert first_step(curve, 0.9) == 15
    assert first_step(curve, 0.4) is None


def test_targets_are_early_shared_and_hard() -> None:
    good = [(0, 9.0), (1, 4.0), (2, 1.0), (3, 1.5)]
    bad = [(0, 8.0), (1, 7.0), (2, 5.0), (3, 4.0)]
    early, shared, hard = choose_targets({"good": [bad, good], "bad": [bad]})
    assert early == 8.0  # Of four records each, the first.
    assert shared == 4.0
    assert hard == pytest.approx(2.0)
    assert first_step(bad, hard) is None
