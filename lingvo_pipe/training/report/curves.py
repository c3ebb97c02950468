"""Curves of a run's metrics, in units of an SVG's view box. Pure."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.training.report import axis
from lingvo_pipe.training.report.series import Point, Series

_LEFT_MARGIN, _DIGIT_WIDTH = 14.0, 6.6

# A metric has a logarithmic scale if its largest value is more than this many times the
# smallest, since a linear scale would hide differences between small values.
_LOG_SPREADS = {
    re.compile(r"(.*_)?(loss|perplexity|pplx)"): 30.0,
    re.compile(r"(.*_)?(rate|norm)"): 1000.0,
}


class Figure(NamedTuple):
    """A metric by step: a color's number per split, notes, and axes if finite."""

    series: Sequence[Series]
    colors: Mapping[str, int]
    notes: list[str]
    grid: "Grid | None"

    @property
    def description(self) -> str:
        """The curves in words."""
        scale = ", on a logarithmic scale" if self.grid and self.grid.is_log else ""
        curves = [f"{x.split} {_range_text(x)}" for x in self.series if x.finite]
        return f"{self.series[0].metric} by step{scale}: {'; '.join(curves)}."


def make_figure(series: Sequence[Series], colors: Mapping[str, int]) -> Figure:
    """Returns the figure of a metric, with at least one series and colors by split."""
    return Figure(
        series,
        {curve.split: colors[curve.split] for curve in series},
        [note for curve in series for note in _notes(curve)],
        Grid(series) if any(curve.finite for curve in series) else None,
    )


def _notes(series: Series) -> list[str]:
    notes = []
    if series.reports_per_point > 1:
        notes.append(
            f"{series.split}: each point is the mean of {series.reports_per_point} "
            "reports; the band spans their minimum and maximum."
        )
    wrong = [report for report in series.reports if not math.isfinite(report.value)]
    if wrong:
        several = f"{len(wrong)} values are" if len(wrong) > 1 else "1 value is"
        first = f"{wrong[0].value} at step {wrong[0].step:,}"
        notes.append(f"{series.split}: {several} not finite, first {first}.")
    return notes


class Grid:
    """The axes of series with a finite value. Ticks are labels with positions."""

    width, height = 420, 240
    right, top, bottom = width - 24.0, 12.0, height - 40.0  # Edges of the grid.

    def __init__(self, series: Sequence[Series]):
        self._steps = axis.step_axis(max(curve.last.step for curve in series))
        self._values = _value_axis(series)
        self.is_log = self._values.is_log
        labels = self._values.labels()
        self.left = _LEFT_MARGIN + _DIGIT_WIDTH * max(map(len, labels))
        self.value_ticks = list(
            zip(labels, map(self.y, self._values.ticks), strict=True)
        )
        positions = map(self.x, self._steps.ticks)
        self.step_ticks = list(zip(self._steps.labels(), positions, strict=True))

    def x(self, step: float) -> float:
        return self.left + self._steps.position(step) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.top + (1 - self._values.position(value)) * (self.bottom - self.top)

    def line(self, segment: Sequence[Point]) -> str:
        """Returns the points of an SVG polyline."""
        return self._points((point.step, point.value) for point in segment)

    def band(self, segment: Sequence[Point]) -> str:
        """Returns the points of a polygon between the minima and maxima of reports."""
        highs = [(point.step, point.high) for point in segment]
        lows = [(point.step, point.low) for point in segment]
        return self._points([*highs, *reversed(lows)])

    def _points(self, numbers: Iterable[tuple[int, float]]) -> str:
        return " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in numbers)


def _value_axis(series: Sequence[Series]) -> axis.Axis:
    values = [report.value for curve in series for report in curve.finite]
    low, high = min(values), max(values)
    spreads = [s for x, s in _LOG_SPREADS.items() if x.fullmatch(series[0].metric)]
    is_log = low > 0 and any(high > low * spread for spread in spreads)
    return axis.log_axis(low, high) if is_log else axis.linear_axis(low, high)


def _range_text(series: Series) -> str:
    reports = dict.fromkeys([series.finite[0], series.finite[-1]])
    ends = [f"{axis.number_text(x.value)} at step {x.step:,}" for x in reports]
    return f"from {ends[0]} to {ends[1]}" if len(ends) > 1 else ends[0]
