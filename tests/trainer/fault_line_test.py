"""Faults that our checks find are told apart from errors in a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lingvo_pipe.fault_line import fault_line
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.base_layer import BaseLayer


def _fails_itself() -> None:
    raise ValueError("a model's own")


def _params() -> Params:
    p = Params()
    p.Define("count", 1, "")
    return p


@pytest.mark.parametrize(
    ("fail", "is_fault"),
    [
        (lambda: _params().FromText("count : x"), True),
        (lambda: _params().Set(cuont=2), True),
        (lambda: BaseLayer.FPropMeta(BaseLayer.Params()), False),
        (lambda: _params().Define("name", 1), False),  # type: ignore[call-arg]
        (_fails_itself, False),
        (lambda: dict[str, int]()["absent"], False),
    ],
    ids=["unreadable", "unknown", "unimplemented", "miscalled", "users", "bug"],
)
def test_only_what_we_check_is_a_fault(fail: Callable[[], Any], is_fault: bool) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Which one is not the point.
        fail()
    line = fault_line(caught.value)
    assert line == (str(caught.value) if is_fault else None)
