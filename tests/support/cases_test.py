"""The suite for everybody and the exhaustive one together run every case."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.support.cases import pairwise, pairwise_params
from tools.run_pytest import boundary

FACTORS: dict[str, list[Any]] = {
    "schedule": ["gpipe", "1f1b", "zero_bubble"],
    "recompute": ["always", "never", None, [0, 2]],
    "num_devices": [1, 2, 3, 4, 8],
    "num_replicas": [1, 2],
}


def _is_case(num_devices: int, num_replicas: int, **_: Any) -> bool:
    return num_devices * num_replicas <= 8


def _pairs(case: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations([(k, str(v)) for k, v in case.items()], 2))


def _product(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    cases = itertools.product(*factors.values())
    return [dict(zip(factors, case, strict=True)) for case in cases]


@pytest.mark.parametrize("seed", range(20))
def test_each_pair_of_values_that_can_meet_meets(seed: int) -> None:
    chance = random.Random(seed)
    factors = {
        name: chance.sample(values, chance.randint(1, len(values)))
        for name, values in FACTORS.items()
    }
    possible = [case for case in _product(factors) if _is_case(**case)]
    chosen = pairwise(factors, _is_case)
    assert all(case in possible for case in chosen)
    assert set().union(*map(_pairs, chosen)) == set().union(*map(_pairs, possible))


def test_they_are_few() -> None:
    """At least as many as there are pairs of the two factors with the most values."""
    assert 20 <= len(pairwise(FACTORS)) <= 24
    assert len(_product(FACTORS)) == 120


def test_the_rest_of_the_product_is_marked() -> None:
    names, params = pairwise_params(FACTORS, _is_case)
    assert names == list(FACTORS)
    possible = [tuple(case.values()) for case in _product(FACTORS) if _is_case(**case)]
    assert [param.values for param in params] == possible
    ordinary = [param.values for param in params if not param.marks]
    chosen = [tuple(case.values()) for case in pairwise(FACTORS, _is_case)]
    assert sorted(map(str, ordinary)) == sorted(map(str, chosen))


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_shards_run_each_test_once_and_keep_files_together(number: int) -> None:
    sizes = {"few_test": 3, "many_test": 250, "more_test": 60, "last_test": 1}
    files = [file for file, size in sizes.items() for _ in range(size)]
    bounds = [boundary(files, len(files) * i // number) for i in range(number + 1)]
    assert (bounds[0], bounds[-1]) == (0, len(files))
    assert bounds == sorted(bounds)
    for at in bounds[1:-1]:
        assert files[at - 1] != files[at] or files[at] == "many_test"
