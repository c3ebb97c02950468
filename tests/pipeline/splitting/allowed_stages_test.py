"""What fits a limit, and the cut whose largest stage is smallest."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from lingvo_pipe.pipeline.splitting.allowed_stages import (
    Size,
    cheapest_ends,
    farthest_ends,
    least_largest_ends,
)


def all_ends(num_layers: int, num_stages: int) -> Iterator[list[int]]:
    for middle in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield [*middle, num_layers]


def sizes(size: Size, ends: list[int]) -> list[int]:
    stages = enumerate(itertools.pairwise([0, *ends]))
    return [size(stage, start, end) for stage, (start, end) in stages]


def random_size(rng: random.Random, num_layers: int, num_stages: int) -> Size:
    """Grows with the end; otherwise at random."""
    table = {
        (stage, start): [0, *itertools.accumulate(rng.choices(range(6), k=num_layers))]
        for stage in range(num_stages)
        for start in range(num_layers)
    }
    offsets = {place: rng.randrange(9) for place in table}
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
        reach = farthest_ends(size, limit, num_layers, range(num_stages))
        for stage, start in itertools.product(range(num_stages), range(num_layers)):
            fitting = [
                end
                for end in range(start + 1, num_layers + 1)
                if size(stage, start, end) <= limit
            ]
            assert reach[stage][start] == max(fitting, default=start)


def test_stages_that_are_alike_are_looked_at_once() -> None:
    for num_layers, num_stages, size, rng in problems():
        limit = rng.randrange(30)
        kinds = rng.choices(range(num_stages), k=num_stages)
        asked: set[int] = set()

        def of_kind(
            stage: int,
            start: int,
            end: int,
            size: Size = size,
            kinds: list[int] = kinds,
            asked: set[int] = asked,
        ) -> int:
            asked.add(stage)
            return size(kinds[stage], start, end)

        reach = farthest_ends(of_kind, limit, num_layers, kinds)
        assert len(asked) == len(set(kinds))
        assert reach == farthest_ends(of_kind, limit, num_layers, range(num_stages))


def test_a_limit_allows_a_cut_if_and_only_if_some_cut_keeps_within() -> None:
    possible = 0
    for num_layers, num_stages, size, rng in problems():
        limit = rng.randrange(30)
        allowed = farthest_ends(size, limit, num_layers, range(num_stages))
        within = [
            ends
            for ends in all_ends(num_layers, num_stages)
            if max(sizes(size, ends)) <= limit
        ]
        possible += bool(within)
        for find in (least_largest_ends, cheapest_ends):
            found = find(size, allowed)
            assert found in within if within else found is None
        if within:
            largest = least_largest_ends(size, allowed)
            assert largest is not None
            best = min(max(sizes(size, ends)) for ends in within)
            assert max(sizes(size, largest)) == best
            ranked = [(sum(sizes(size, e)), [-end for end in e], e) for e in within]
            assert cheapest_ends(size, allowed) == min(ranked)[2]
    assert 100 < possible < 400


@pytest.mark.parametrize("num_stages", [1, 3])
def test_where_no_layer_fits_no_cut_is_allowed(num_stages: int) -> None:
    nothing = [list(range(3))] * num_stages
    assert least_largest_ends(lambda *_: 0, nothing) is None
    assert cheapest_ends(lambda *_: 0, nothing) is None
