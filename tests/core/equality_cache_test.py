"""A cached function runs once for equal arguments."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.core.equality_cache import cached_by_equality
from lingvo_pipe.hyperparams import Params


def _params(value: int) -> Params:
    p = Params()
    p.Define("value", value, "A value.")
    return p


def test_it_runs_once_for_equal_arguments() -> None:
    calls: list[Any] = []

    @cached_by_equality
    def run(p: Params, sizes: list[int], scale: int = 1) -> int:
        calls.append((p, sizes, scale))
        return p.value * scale

    for _ in range(2):
        assert run(_params(3), [1]) == 3
        assert run(_params(4), [1]) == 4
        assert run(_params(3), [2]) == 3
        assert run(_params(3), [1], scale=2) == 6
    assert len(calls) == 4


def test_an_error_is_not_kept() -> None:
    calls: list[int] = []

    @cached_by_equality
    def run(value: int) -> int:
        calls.append(value)
        return 1 // value

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(0)
    assert calls == [0, 0]
