"""Which cells' amounts fall to which replica, against the pipeline's placing."""

from __future__ import annotations

import itertools
import random

import pytest

from lingvo_pipe.pipeline.homes import homes_in_turn
from lingvo_pipe.planner.home_shares import HomeShares

AMOUNTS = [random.Random(1).randrange(100) for _ in range(9)]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 12])
def test_whole_cells_fall_to_replicas_in_turn(num_replicas: int) -> None:
    shares = HomeShares(AMOUNTS, num_replicas)
    names = [str(r) for r in range(num_replicas)]
    for start, end in itertools.combinations(range(len(AMOUNTS) + 1), 2):
        # Stages in front and behind, so that this one lies between `start` and `end`.
        homes = homes_in_turn([start, end], [["-", name] for name in names])[start:]
        want = dict.fromkeys(names, 0)
        for amount, home in zip(AMOUNTS[start:end], homes, strict=True):
            want[home] += amount
        assert shares.of_replicas(start, end) == list(want.values())
        assert shares.most(start, end) == max(want.values())


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
def test_the_bound_holds_and_falls_with_fewer_cells(num_replicas: int) -> None:
    shares, below = HomeShares(AMOUNTS, num_replicas), 0
    for start, end in itertools.combinations(range(len(AMOUNTS) + 1), 2):
        least = shares.at_least(start, end)
        assert sum(AMOUNTS[start:end]) / num_replicas <= least
        assert least <= shares.most(start, end)
        below += least < shares.most(start, end)
        if start + 1 < end:
            assert shares.at_least(start + 1, end) <= least
            assert shares.at_least(start, end - 1) <= least
    assert (below > 0) == (num_replicas > 1)
