"""Values of `splits`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.pipeline.splitting.partitioning import resolve_boundaries

SIZES = [(layers, k) for layers in range(1, 14) for k in range(1, layers + 1)]


@pytest.mark.parametrize(("num_layers", "num_stages"), SIZES)
def test_a_number_makes_stages_of_equal_numbers_of_layers(
    num_layers: int, num_stages: int
) -> None:
    boundaries = resolve_boundaries(num_stages, num_layers)
    assert boundaries[-1] == num_layers
    sizes = [b - a for a, b in itertools.pairwise([0, *boundaries])]
    assert len(sizes) == num_stages
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("splits", [[1, 3], (1, 3), [np.int64(1), np.int32(3)]])
def test_valid_boundaries_are_kept(splits: Any) -> None:
    boundaries = resolve_boundaries(splits, 3)
    assert boundaries == [1, 3]
    assert {type(end) for end in boundaries} == {int}
    two: Any = np.int64(2)
    assert resolve_boundaries(two, 3) == [2, 3]


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
    ],
)
def test_all_problems_of_boundaries_are_reported_at_once(
    boundaries: Any, problems: list
) -> None:
    """They name the stages and boundaries; an empty stage with its start and end."""
    named = "".join(rf"\D*{re.escape(repr(x))}" for x in problems)
    pattern = rf"\bsplits\D*\b3\D*{re.escape(repr(list(boundaries)))}{named}\D*$"
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
