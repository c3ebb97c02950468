"""An error's text is made from its fields, which stay readable."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserTypeError, UserValueError, Words, raise_problems
from lingvo_pipe.layers.dense import FCLayer
from tests.support.errors import fails


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"got": 9}, "p.splits: expected at most 8, got 9."),
        ({"got": None}, "p.splits: expected at most 8, got None."),
        ({"got": "9"}, "p.splits: expected at most 8, got '9'."),
        ({"got": Words("9 cells")}, "p.splits: expected at most 8, got 9 cells."),
        ({}, "p.splits: expected at most 8."),
        ({"path": "", "got": 9}, "expected at most 8, got 9."),
        ({"expected": "1, 2 or 4", "got": 3}, "p.splits: expected 1, 2 or 4; got 3."),
        ({"got": 9, "hint": "Cut."}, "p.splits: expected at most 8, got 9. Cut."),
        (
            {"got": "atuo", "names": ["auto"], "hint": "Cut."},
            "p.splits: expected at most 8, got 'atuo'. Did you mean 'auto'? Cut.",
        ),
        (
            {"got": [FCLayer.Params()]},
            "p.splits: expected at most 8, got [FCLayer.Params()].",
        ),
        ({"message": "No room.", "got": 9, "hint": "Cut."}, "No room. Cut."),
    ],
)
def test_text(fields: dict[str, Any], text: str) -> None:
    error = UserValueError(**{"path": "p.splits", "expected": "at most 8", **fields})
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_long_values_are_cut() -> None:
    error = UserValueError(path="x", expected="few", got=list(range(1000)))
    assert len(str(error)) < 250
    assert error.got == list(range(1000))


def test_an_error_of_a_part_names_the_whole() -> None:
    part = UserTypeError(path="w", expected="a matrix", got=3, hint="Reshape it.")
    whole = part.within("net.dense")
    assert isinstance(whole, UserTypeError)
    assert str(whole) == "net.dense.w: expected a matrix, got 3. Reshape it."


def test_several_problems_are_one_error() -> None:
    problems = [UserValueError(path=x, expected="a count", got=-1) for x in "ab"]
    with fails() as info:
        raise_problems(problems, "Count.")
    assert str(info.value) == (
        "a: expected a count, got -1; b: expected a count, got -1. Count."
    )
    assert info.value.problems == tuple(problems)
    with fails(path="a", expected="a count", got=-1, hint="Count."):
        raise_problems(problems[:1], "Count.")
    raise_problems([])


def test_the_helper_of_tests_fails_for_another_field() -> None:
    with pytest.raises(AssertionError), fails(path="a", got=2):
        raise UserValueError(path="a", expected="1", got=3)
