"""Checks of numbers, and errors that list several problems."""

from __future__ import annotations

import numpy as np
import pytest

from lingvo_pipe.core.checks import check_counts, is_count
from lingvo_pipe.core.errors import raise_problems


def test_counts_are_positive_integers() -> None:
    assert all(map(is_count, [1, 7, np.int64(2)]))
    assert not any(map(is_count, [0, -1, True, 1.0, "1", None]))
    assert is_count(0, minimum=0)
    assert not is_count(1, minimum=2)


def test_every_wrong_count_is_named() -> None:
    check_counts({"a.b": 1}, c=2)
    with pytest.raises(ValueError, match=r"a\.b.*\b1\b.* 0;.*d.*1\.5.*x\.$"):
        check_counts({"a.b": 0, "c": 2}, d=1.5, hint="x.")


def test_no_problem_raises_nothing() -> None:
    raise_problems([])
    with pytest.raises(ValueError, match=r"^one; two\.$"):
        raise_problems(["one", "two"])
