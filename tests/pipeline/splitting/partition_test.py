"""What users write as splits."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.pipeline.splitting.partition import check_ends, is_count, resolve_ends

SIZES = [(layers, k) for layers in range(1, 14) for k in range(1, layers + 1)]


@pytest.mark.parametrize(("num_layers", "num_stages"), SIZES)
def test_a_number_makes_stages_of_even_numbers_of_layers(
    num_layers: int, num_stages: int
) -> None:
    ends = resolve_ends(num_stages, num_layers, costs=list(range(num_layers)))
    check_ends(ends, num_layers)
    sizes = [b - a for a, b in itertools.pairwise([0, *ends])]
    assert len(sizes) == num_stages
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_auto_balances_costs() -> None:
    costs = [9.0, 1.0, 1.0, 1.0, 5.0]
    for num_stages in range(1, 6):
        ends = resolve_ends("auto", 5, num_stages, costs)
        assert ends == balanced_ends(costs, num_stages)
    assert resolve_ends("auto", 5, 2, costs) == [1, 5]


@pytest.mark.parametrize("splits", [[1, 3], (1, 3), [np.int64(1), np.int32(3)]])
def test_good_ends_are_kept(splits: Any) -> None:
    ends = resolve_ends(splits, 3, num_stages=2)
    assert ends == [1, 3]
    assert {type(end) for end in ends} == {int}
    two: Any = np.int64(2)
    assert resolve_ends(two, 3) == [2, 3]


@pytest.mark.parametrize("num_stages", [0, -1, 4])
def test_impossible_numbers_of_stages_are_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match=rf"\b1\D*\b3\D* {num_stages}\b"):
        resolve_ends(num_stages, 3)


@pytest.mark.parametrize(
    ("ends", "faults"),
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
def test_all_faults_of_ends_are_told_at_once(ends: Any, faults: list) -> None:
    """By their stages and ends; an empty stage by where it begins and ends."""
    told = "".join(rf"\D*{re.escape(repr(fault))}" for fault in faults)
    pattern = rf"\bsplits\D*\b3\D*{re.escape(repr(list(ends)))}{told}\D*$"
    with pytest.raises(ValueError, match=pattern):
        check_ends(ends, 3)
    if not isinstance(ends, str):
        with pytest.raises(ValueError, match=pattern):
            resolve_ends(ends, 3)


@pytest.mark.parametrize("splits", ["2", "[1, 3]", "Auto", True, 2.0, None, {1: 3}])
def test_what_is_no_split_is_refused(splits: Any) -> None:
    given = re.escape(repr(splits))
    with pytest.raises(ValueError, match=rf"\bsplits\b.*'auto'.*{given}"):
        resolve_ends(splits, 3)


def test_a_quoted_number_is_told_from_a_number() -> None:
    with pytest.raises(ValueError, match=r"\bsplits\b.*'2'.*\bquotes\b"):
        resolve_ends("2", 3)


@pytest.mark.parametrize("splits", [3, [1, 2, 3]])
def test_another_number_of_stages_than_wanted_is_refused(splits: Any) -> None:
    named = rf"\bsplits\D*\b2\b.*{re.escape(repr(splits))}\D*\b3\b.*\bsplits=2\b"
    with pytest.raises(ValueError, match=named):
        resolve_ends(splits, 3, num_stages=2)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({}, r"splits='auto'.*\bdevices\b.*\bcell_costs\b"),
        ({"num_stages": 2}, r"splits='auto'(?!.*\bdevices\b).*\bcell_costs\b"),
        ({"costs": [1, 2, 3]}, r"splits='auto'(?!.*\bcell_costs\b).*\bdevices\b"),
        ({"num_stages": 2, "costs": [1]}, r"splits='auto'.*\b1\D*\bcosts\D*\b3\b"),
        ({"num_stages": 4, "costs": [1, 2, 3]}, r"\b1\D*\b3\D* 4\b"),
    ],
)
def test_auto_says_what_it_lacks(arguments: dict, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        resolve_ends("auto", 3, **arguments)


def test_counts_are_positive_integers() -> None:
    assert all(map(is_count, [1, 7, np.int64(2)]))
    assert not any(map(is_count, [0, -1, True, 1.0, "1", None]))
