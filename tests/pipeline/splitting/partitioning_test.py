"""Values of `splits`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.partitioning import (
    check_boundaries,
    resolve_boundaries,
)
from tests.support.errors import fails

SIZES = [(layers, k) for layers in range(1, 14) for k in range(1, layers + 1)]


@pytest.mark.parametrize(("num_layers", "num_stages"), SIZES)
def test_a_number_makes_stages_of_equal_numbers_of_layers(
    num_layers: int, num_stages: int
) -> None:
    boundaries = resolve_boundaries(
        num_stages, num_layers, costs=list(range(num_layers))
    )
    check_boundaries(boundaries, num_layers)
    sizes = [b - a for a, b in itertools.pairwise([0, *boundaries])]
    assert len(sizes) == num_stages
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_auto_balances_costs() -> None:
    costs = [9.0, 1.0, 1.0, 1.0, 5.0]
    for num_stages in range(1, 6):
        boundaries = resolve_boundaries("auto", 5, num_stages, costs)
        assert boundaries == balanced_boundaries(costs, num_stages)
    assert resolve_boundaries("auto", 5, 2, costs) == [1, 5]


@pytest.mark.parametrize("splits", [[1, 3], (1, 3), [np.int64(1), np.int32(3)]])
def test_valid_boundaries_are_kept(splits: Any) -> None:
    boundaries = resolve_boundaries(splits, 3, num_stages=2)
    assert boundaries == [1, 3]
    assert {type(end) for end in boundaries} == {int}
    two: Any = np.int64(2)
    assert resolve_boundaries(two, 3) == [2, 3]


@pytest.mark.parametrize("num_stages", [0, -1, 4])
def test_impossible_numbers_of_stages_are_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match=rf"\b1\D*\b3\D* {num_stages}\b"):
        resolve_boundaries(num_stages, 3)


@pytest.mark.parametrize(
    ("boundaries", "problems"),
    [
        ([], []),
        ([2], [2]),
        ([0, 3], [0, 0, 0]),
        ([2, 2, 3], [1, 2, 2]),
        ([3, 2], [1, 3, 2, 2]),
        ([1, 4], [4]),
        ([-1, 0, 7], [0, 0, -1, 7]),
        ([1, "3"], ["3"]),
        ([True, 2.0, 3], [True, 2.0]),
        ("23", ["2", "3"]),
    ],
)
def test_all_problems_of_boundaries_are_reported_at_once(
    boundaries: Any, problems: list
) -> None:
    """They name the stages and boundaries; an empty stage with its start and end."""
    named = "".join(rf"\D*{re.escape(repr(x))}" for x in problems)
    pattern = rf"\bsplits\D*\b3\D*{re.escape(repr(list(boundaries)))}{named}\D*$"
    with pytest.raises(ValueError, match=pattern):
        check_boundaries(boundaries, 3)
    if not isinstance(boundaries, str):
        with pytest.raises(ValueError, match=pattern):
            resolve_boundaries(boundaries, 3)


@pytest.mark.parametrize("splits", ["2", "[1, 3]", "Auto", True, 2.0, None, {1: 3}])
def test_invalid_splits_are_refused(splits: Any) -> None:
    given = re.escape(repr(splits))
    with pytest.raises(ValueError, match=rf"\bsplits\b.*'auto'.*{given}"):
        resolve_boundaries(splits, 3)


def test_a_quoted_number_is_told_from_a_number() -> None:
    with pytest.raises(ValueError, match=r"\bsplits\b.*'2'.*\bquotes\b"):
        resolve_boundaries("2", 3)


@pytest.mark.parametrize("splits", [3, [1, 2, 3]])
def test_a_number_of_stages_other_than_expected_is_refused(splits: Any) -> None:
    with fails(path="splits", expected="2 stages", got=splits):
        resolve_boundaries(splits, 3, num_stages=2)


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ({}, "None stages and None costs"),
        ({"num_stages": 2}, "2 stages and None costs"),
        ({"costs": [1, 2, 3]}, "None stages and 3 costs"),
        ({"num_stages": 2, "costs": [1]}, "2 stages and 1 costs"),
    ],
)
def test_auto_needs_stages_and_costs(arguments: dict, got: str) -> None:
    with fails(path="splits", got=got):
        resolve_boundaries("auto", 3, **arguments)


def test_auto_has_at_most_a_stage_per_layer() -> None:
    with pytest.raises(UserValueError, match=r"\b1 to 3\b.*\b4\b"):
        resolve_boundaries("auto", 3, num_stages=4, costs=[1, 2, 3])
