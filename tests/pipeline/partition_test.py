from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.partition import balanced_ends, check_ends, resolve_ends


def _largest(costs: Sequence[float], ends: Sequence[int]) -> float:
    return max(sum(costs[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def _squares(costs: Sequence[float], ends: Sequence[int]) -> float:
    return sum(sum(costs[a:b]) ** 2 for a, b in zip([0, *ends], ends, strict=False))


def test_the_largest_stage_is_as_small_as_brute_force_makes_it() -> None:
    rng = random.Random(0)
    for _ in range(300):
        num_layers = rng.randint(1, 8)
        num_stages = rng.randint(1, num_layers)
        costs = [rng.choice([0.0, 1.0, 2.0, 5.0, 9.5]) for _ in range(num_layers)]
        ends = balanced_ends(costs, num_stages)
        check_ends(ends, num_layers)
        assert len(ends) == num_stages
        best = min(
            _largest(costs, [*middle, num_layers])
            for middle in itertools.combinations(range(1, num_layers), num_stages - 1)
        )
        assert _largest(costs, ends) == best
        assert _squares(costs, ends) == pytest.approx(
            min(
                _squares(costs, [*middle, num_layers])
                for middle in itertools.combinations(
                    range(1, num_layers), num_stages - 1
                )
                if _largest(costs, [*middle, num_layers]) <= best
            )
        )


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [
        (16, 4, [4, 4, 4, 4]),
        (24, 4, [6, 6, 6, 6]),
        (4, 4, [1, 1, 1, 1]),
        (5, 4, [2, 1, 1, 1]),
        (9, 4, [3, 2, 2, 2]),
        (12, 5, [3, 3, 2, 2, 2]),
    ],
)
def test_equal_layers_make_even_stages(
    num_layers: int, num_stages: int, sizes: list[int]
) -> None:
    """Lingvo's partitioners left stages empty or uneven for these."""
    ends = resolve_ends(num_stages, num_layers)
    found = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    assert found == sizes


@pytest.mark.parametrize("num_stages", [0, -1, 4])
def test_impossible_numbers_of_stages_are_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and .* 3; got {num_stages}"):
        resolve_ends(num_stages, 3)


@pytest.mark.parametrize("ends", [[], [2], [0, 3], [2, 2, 3], [3, 2], [1, 4]])
def test_ends_that_drop_or_repeat_layers_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="splits must list the ends"):
        resolve_ends(ends, 3)


def test_good_ends_are_kept() -> None:
    assert resolve_ends([1, 3], 3) == [1, 3]
