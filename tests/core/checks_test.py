"""Checks of numbers."""

from __future__ import annotations

import numpy as np

from lingvo_pipe.core.checks import MAX_COUNT, check_counts, is_count
from tests.support.errors import fails


def test_counts_are_positive_integers() -> None:
    assert all(map(is_count, [1, 7, np.int64(2)]))
    assert not any(map(is_count, [0, -1, True, 1.0, "1", None]))
    assert is_count(0, minimum=0)
    assert not is_count(1, minimum=2)


def test_every_wrong_count_is_named() -> None:
    check_counts({"a.b": 1}, c=2)
    with fails(hint="x.") as info:
        check_counts({"a.b": 0, "c": 2}, d=1.5, e=MAX_COUNT + 1, hint="x.")
    problems = [(problem.path, problem.got) for problem in info.value.problems]
    assert problems == [("a.b", 0), ("d", 1.5), ("e", MAX_COUNT + 1)]
