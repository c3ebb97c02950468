"""Devices that share a machine are as slow as all of them together."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner import slowdown
from lingvo_pipe.planner.slowdown import measured_slowdown

TRACED: Any = SimpleNamespace(stage_calls=[], specs={})
ALONE = [CellSeconds(0.25, 0.75)]


def _together(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    """Has cells take that long on each device once all are busy."""
    everyone = threading.Barrier(len(seconds))

    def measure(calls: Any, specs: Any, device: str) -> list[CellSeconds]:
        everyone.wait(timeout=30)  # Nobody would come if they ran in turn.
        return [CellSeconds(0.25 * seconds[device], 0.75 * seconds[device])]

    monkeypatch.setattr(slowdown, "measured_seconds", measure)


def test_all_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _together(monkeypatch, {"a": 1.0, "b": 1.5, "c": 3.0})
    assert measured_slowdown(TRACED, ["a", "b", "c"], ALONE) == pytest.approx(1.5)


def test_none_is_faster_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    _together(monkeypatch, {"a": 0.5, "b": 0.5})
    assert measured_slowdown(TRACED, ["a", "b"], ALONE) == 1.0


def test_one_has_no_company() -> None:
    assert measured_slowdown(TRACED, ["a"], ALONE) == 1.0
