"""Curves: steps to the right, values upwards."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes

from lingvo_pipe.training.report import curves
from lingvo_pipe.training.report.series import Report, Series


def test_a_curve_has_its_values_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plotted: list[Any] = []
    original = Axes.plot

    def plot(self: Axes, *args: Any, **options: Any) -> Any:
        plotted.append(args[:2])
        return original(self, *args, **options)

    monkeypatch.setattr(Axes, "plot", plot)
    reports = (Report(10, 3.0), Report(30, 2.0))
    series = Series("loss", "train", reports)
    assert b"<svg" in curves._draw([series], {"train": "#123456"}, is_log=False)
    assert plotted == [((10, 30), (3.0, 2.0))]
