"""Feasible ends within a limit, and the best allowed partition, against brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from lingvo_pipe.pipeline.splitting.allowed_stages import (
    Size,
    cheapest_boundaries,
    feasible_ends,
    minimax_boundaries,
)
from tests.pipeline.boundaries import all_boundaries


def sizes(size: Size, boundaries: list[int]) -> list[int]:
    stages = enumerate(itertools.pairwise([0, *boundaries]))
    return [size(stage, start, end) for stage, (start, end) in stages]


def random_size(rng: random.Random, num_layers: int, num_stages: int) -> Size:
    """Returns random sizes that grow with the end."""
    table = {
        (stage, start): [0, *itertools.accumulate(rng.choices(range(6), k=num_layers))]
        for stage in range(num_stages)
        for start in range(num_layers)
    }
    offsets = {key: rng.randrange(9) for key in table}
    return lambda k, start, end: table[k, start][end - start] + offsets[k, start]


def problems() -> Iterator[tuple[int, int, Size, random.Random]]:
    rng = random.Random(0)
    for _ in range(500):
        num_layers = rng.randint(1, 8)
        num_stages = rng.randint(1, num_layers)
        yield num_layers, num_stages, random_size(rng, num_layers, num_stages), rng


def test_stages_reach_as_far_as_they_fit() -> None:
    for num_layers, num_stages, size, rng in problems():
        limit = rng.randrange(30)
        reach = feasible_ends(size, limit, num_layers, range(num_stages))
        for stage, start in itertools.product(range(num_stages), range(num_layers)):
            fitting = [
                end
                for end in range(start + 1, num_layers + 1)
                if size(stage, start, end) <= limit
            ]
            assert reach[stage][start] == max(fitting, default=start)


def test_stages_of_one_key_are_searched_once() -> None:
    for num_layers, num_stages, size, rng in problems():
        limit = rng.randrange(30)
        kinds = rng.choices(range(num_stages), k=num_stages)
        asked: set[int] = set()

        def size_of_kind(
            stage: int,
            start: int,
            end: int,
            size: Size = size,
            kinds: list[int] = kinds,
            asked: set[int] = asked,
        ) -> int:
            asked.add(stage)
            return size(kinds[stage], start, end)

        reach = feasible_ends(size_of_kind, limit, num_layers, kinds)
        assert len(asked) == len(set(kinds))
        assert reach == feasible_ends(
            size_of_kind, limit, num_layers, range(num_stages)
        )


def test_a_limit_allows_a_partition_if_and_only_if_one_keeps_within() -> None:
    possible = 0
    for num_layers, num_stages, size, rng in problems():
        limit = rng.randrange(30)
        allowed = feasible_ends(size, limit, num_layers, range(num_stages))
        within = [
            boundaries
            for boundaries in all_boundaries(num_layers, num_stages)
            if max(sizes(size, boundaries)) <= limit
        ]
        possible += bool(within)
        for find in (minimax_boundaries, cheapest_boundaries):
            found = find(size, allowed)
            assert found in within if within else found is None
        if within:
            largest = minimax_boundaries(size, allowed)
            assert largest is not None
            best = min(max(sizes(size, boundaries)) for boundaries in within)
            assert max(sizes(size, largest)) == best
            ranked = [(sum(sizes(size, e)), [-end for end in e], e) for e in within]
            assert cheapest_boundaries(size, allowed) == min(ranked)[2]
    assert 100 < possible < 400


@pytest.mark.parametrize("num_stages", [1, 3])
def test_where_no_layer_fits_no_partition_is_allowed(num_stages: int) -> None:
    nothing = [list(range(3))] * num_stages
    assert minimax_boundaries(lambda *_: 0, nothing) is None
    assert cheapest_boundaries(lambda *_: 0, nothing) is None
