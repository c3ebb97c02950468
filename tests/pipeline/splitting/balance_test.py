"""The best partition against all others."""

from __future__ import annotations

import itertools
import operator
import random
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from tests.pipeline.boundaries import all_boundaries
from tests.support.cases import exhaustive
from tests.support.errors import fails

MAX_SECONDS = 20.0  # Of the processor, on a busy machine.


def exact(values: Sequence[float]) -> list[Fraction]:
    return [Fraction(str(value)) for value in values]


def stage_sums(values: Sequence[Any], boundaries: Sequence[int]) -> list[Any]:
    return [sum(values[a:b]) for a, b in itertools.pairwise([0, *boundaries])]


def brute_force(
    costs: Sequence[float],
    num_stages: int,
    traffic: Sequence[float] | None = None,
    feasible_end: Sequence[Sequence[int]] | None = None,
    slowness: Sequence[float] | None = None,
) -> list[int] | None:
    """Returns the best of all allowed partitions; None if none is allowed."""
    exact_costs, factors = exact(costs), exact(slowness or [1] * num_stages)
    exact_traffic = exact(traffic or [0] * len(costs))

    def is_allowed(boundaries: list[int]) -> bool:
        return feasible_end is None or all(
            end <= feasible_end[stage][start]
            for stage, (start, end) in enumerate(itertools.pairwise([0, *boundaries]))
        )

    def rank(boundaries: list[int]) -> Any:
        sums = list(map(operator.mul, stage_sums(exact_costs, boundaries), factors))
        crossing = sum(exact_traffic[end - 1] for end in boundaries[:-1])
        squares = sum(s * s for s in sums)
        return max(sums), crossing, squares, [-end for end in boundaries]

    allowed = filter(is_allowed, all_boundaries(len(costs), num_stages))
    return min(allowed, key=rank, default=None)


NUMBERS: dict[str, list[Any]] = {
    "integers": [0, 1, 2, 3, 7],
    "many zeros": [0, 0, 0, 0.0, 1],
    "decimals": [0.0, 0.1, 0.2, 0.3, 0.7, 1.1],
    "magnitudes": [1e-300, 1e-9, 1.0, 1e17, 1e17 + 16, 3e300],
    "large integers": [2**62, 2**62 + 1, 2**63, 10**20],
    "numpy": [np.float32(0.1), np.float64(0.2), np.int64(3), np.int32(0)],
}


NUM_PROBLEMS = 250
SLOWNESS = [1.0, 156 / 65, 156 / 8.1, 0.3]


def problems(values: list[Any], seed: str) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for i in range(NUM_PROBLEMS):
        num_layers = rng.randint(1, 9)

        def numbers(num_layers: int = num_layers) -> list[Any]:
            return [rng.choice(values) for _ in range(num_layers)]

        num_stages = rng.randint(1, num_layers)
        problem: dict[str, Any] = {"costs": numbers(), "num_stages": num_stages}
        if i % 2:
            problem["traffic"] = numbers()
        if i % 4 > 1:
            problem["feasible_end"] = [
                [rng.randint(start, num_layers) for start in range(num_layers)]
                for _ in range(num_stages)
            ]
        if i % 8 > 3:
            problem["slowness"] = [rng.choice(SLOWNESS) for _ in range(num_stages)]
        yield problem


@pytest.mark.parametrize("more", ["", exhaustive(" 2")])
@pytest.mark.parametrize("kind", NUMBERS)
def test_it_is_the_best_of_all_partitions(kind: str, more: str) -> None:
    num_refused = 0
    for problem in problems(NUMBERS[kind], kind + more):
        best = brute_force(**problem)
        if best is None:
            num_refused += 1
            with pytest.raises(
                ValueError, match=rf"^\D*\b{problem['num_stages']}\b\D*$"
            ):
                balanced_boundaries(**problem)
        else:
            assert balanced_boundaries(**problem) == best, problem
    assert 10 < num_refused < 115


def test_equally_slow_stages_change_nothing() -> None:
    for problem in problems(NUMBERS["decimals"], "equally slow"):
        alike = {**problem, "slowness": [19.3] * problem["num_stages"]}
        plain = {**problem, "slowness": None}
        if brute_force(**plain) is not None:
            assert balanced_boundaries(**alike) == balanced_boundaries(**plain)


def test_equal_costs_are_equal_whatever_their_sums_round_to() -> None:
    """0.1 + 0.2 > 0.3 and 1e17 + 1 == 1e17 in floats."""
    assert balanced_boundaries([0.1, 0.2, 0.3], 2) == [2, 3]
    assert balanced_boundaries([0.3, 0.1, 0.2], 2) == [1, 3]
    assert balanced_boundaries([1e17, 1, 1, 1e17], 2) == [2, 4]
    assert balanced_boundaries([1e17, 1, 1, 1, 1e17], 2) == [3, 5]
    for cost in (0.1, 1 / 3, 1e-5, 1e22, 123456.789):
        assert balanced_boundaries([cost] * 30, 4) == [8, 16, 23, 30]


def test_traffic_decides_among_equals_alone() -> None:
    costs = [4, 1, 1, 1, 1, 4]
    assert balanced_boundaries(costs, 3) == [1, 5, 6]
    assert balanced_boundaries([*costs, 5], 3, traffic=[9, 9, 2, 3, 9, 1, 0]) == [
        3,
        6,
        7,
    ]
    assert balanced_boundaries([5, 1, 1], 2, traffic=[99, 0, 0]) == [1, 3]
    assert balanced_boundaries([5, 0, 1], 2, traffic=[99, 0, 0]) == [2, 3]


@pytest.mark.parametrize("num_stages", [0, -1, 4, 1.5])
def test_impossible_numbers_of_stages_are_refused(num_stages: Any) -> None:
    with fails(path="splits", got=num_stages):
        balanced_boundaries([1, 2, 3], num_stages)


@pytest.mark.parametrize("slowness", [None, exhaustive([1.0] * 8 + [19.3] * 8)])
@pytest.mark.parametrize("kind", ["random", "one is huge", "equal", "magnitudes"])
def test_a_thousand_layers_take_no_time(
    kind: str, slowness: list[float] | None
) -> None:
    rng = random.Random(kind)
    costs = [rng.random() for _ in range(1024)]
    if kind == "one is huge":
        costs[500] = 1e6
    elif kind == "equal":
        costs = [0.7] * 1024
    elif kind == "magnitudes":
        costs = [10.0 ** rng.randint(-300, 300) for _ in range(1024)]
    start = time.process_time()
    traffic = [rng.random() for _ in costs]
    boundaries = balanced_boundaries(costs, 16, traffic, slowness=slowness)
    assert time.process_time() - start < MAX_SECONDS
    assert len(set(boundaries)) == 16


def test_the_search_among_allowed_stages_finds_the_same() -> None:
    rng = random.Random(0)
    costs, traffic = ([rng.random() for _ in range(1024)] for _ in range(2))
    start = time.process_time()
    boundaries = balanced_boundaries(
        costs, 16, traffic, feasible_end=[[1024] * 1024] * 16
    )
    assert time.process_time() - start < MAX_SECONDS
    assert boundaries == balanced_boundaries(costs, 16, traffic)
