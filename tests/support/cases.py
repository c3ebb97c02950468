"""Cases of a test for the fast suite, and for //tests:exhaustive alone.

Most mistakes show with one value, or with two together. So of a product the suite for
everybody runs a covering array, in which each two values of two factors still meet.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest

_Pair = frozenset[tuple[str, Hashable]]


def exhaustive(*values: Any) -> Any:
    """Returns an argument of `pytest.mark.parametrize` that is marked exhaustive."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def fast_cases(cases: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Returns arguments of `parametrize`: cases, all but the `fast` ones exhaustive.

    Raises:
        ValueError: if a fast one is not among the cases.
    """
    cases = list(cases)
    if unknown := [case for case in fast if case not in cases]:
        raise ValueError(f"no cases: {unknown}")
    return [
        case
        if case in fast
        else exhaustive(*(case if isinstance(case, tuple) else [case]))
        for case in cases
    ]


def seeds(number: int, fast: Collection[int] = ()) -> list[Any]:
    """Returns the seeds of a random test: a number of exhaustive ones, and `fast` ones.

    SEEDS_TIMES=3 in the environment makes them three times as many.
    """
    number *= int(os.environ.get("SEEDS_TIMES", "1"))
    return fast_cases(sorted({*range(number), *fast}), fast)


def pairwise(
    factors: Mapping[str, Sequence[Any]],
    is_case: Callable[..., bool] = lambda **values: True,
) -> list[dict[str, Any]]:
    """Returns a covering array: cases that hold each pair of values that can meet.

    Takes the case with the most new pairs until there are none, the first of several.

    Args:
        factors: Values by the factor's name.
        is_case: Says of values by name whether they can be together.
    """
    cases = [case for case in _product(factors) if is_case(**case)]
    left = set().union(*map(_pairs, cases))
    chosen = []
    while left:
        chosen.append(max(cases, key=lambda case: len(_pairs(case) & left)))
        left -= _pairs(chosen[-1])
    return chosen


def pairwise_params(
    factors: Mapping[str, Sequence[Any]],
    is_case: Callable[..., bool] = lambda **values: True,
) -> tuple[list[str], list[Any]]:
    """Returns arguments of `pytest.mark.parametrize` for all cases of a product.

    Those that are not in the covering array are marked `exhaustive`.
    """
    chosen = pairwise(factors, is_case)
    params = [
        pytest.param(*case.values()) if case in chosen else exhaustive(*case.values())
        for case in _product(factors)
        if is_case(**case)
    ]
    return list(factors), params


def _product(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(factors, values, strict=True))
        for values in itertools.product(*factors.values())
    ]


def _pairs(case: Mapping[str, Any]) -> set[_Pair]:
    values = [(name, repr(value)) for name, value in case.items()]
    return set(map(frozenset, itertools.combinations(values, 2)))
