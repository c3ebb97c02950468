"""Curves of a run's metrics: drawn as SVG by the page's template. Pure.

Coordinates are in units of the SVG's view box, from its top left corner.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.training.report.axis import (
    Axis,
    linear_axis,
    log_axis,
    number_text,
    step_axis,
)
from lingvo_pipe.training.report.series import Series

_WIDTH, _HEIGHT = 420, 240
_RIGHT, _TOP, _BOTTOM = _WIDTH - 24.0, 12.0, _HEIGHT - 40.0  # Edges of the grid.
_LEFT_MARGIN, _DIGIT_WIDTH = 14.0, 6.6
_MAX_VISIBLE_DOTS = 40

# A metric has a logarithmic scale if its largest value is more than this many times the
# smallest, since a linear scale would hide differences between small values.
_LOG_SPREADS = {
    re.compile(r"(.*_)?(loss|perplexity|pplx)"): 30.0,
    re.compile(r"(.*_)?(rate|norm)"): 1000.0,
}


class Dot(NamedTuple):
    """A point whose value the mouse shows; `is_seen` if it is always visible."""

    x: float
    y: float
    text: str
    is_seen: bool


class Curve(NamedTuple):
    """The curve of a split: a color's number, points of SVG elements, and dots.

    Bands go from the minima to the maxima of the points' reports.
    """

    color: int
    bands: list[str]
    lines: list[str]
    dots: list[Dot]


class Drawing(NamedTuple):
    """The curves of a metric on a grid: labels with their positions, and curves."""

    description: str
    value_ticks: list[tuple[str, float]]
    step_ticks: list[tuple[str, float]]
    step_title: str
    left: float
    curves: list[Curve]
    right: float = _RIGHT
    bottom: float = _BOTTOM
    width: int = _WIDTH
    height: int = _HEIGHT


class Figure(NamedTuple):
    """A metric by step; without a drawing if no value is finite.

    Notes are sentences on details that the drawing does not show.
    """

    metric: str
    colors: dict[str, int]
    notes: list[str]
    drawing: Drawing | None


def make_figure(series: Sequence[Series], colors: Mapping[str, int]) -> Figure:
    """Returns the figure of a metric, with at least one series and colors by split."""
    return Figure(
        series[0].metric,
        {each.split: colors[each.split] for each in series},
        [note for each in series for note in _notes(each)],
        _draw(series, colors) if any(each.finite for each in series) else None,
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


class _Grid:
    """The axes of series with at least one finite value, and positions on them."""

    def __init__(self, series: Sequence[Series]):
        self.steps = step_axis(max(each.last.step for each in series))
        self.values = _value_axis(series)
        widest = max(map(len, self.values.labels()))
        self.left = _LEFT_MARGIN + _DIGIT_WIDTH * widest

    def x(self, step: float) -> float:
        return self.left + self.steps.position(step) * (_RIGHT - self.left)

    def y(self, value: float) -> float:
        return _TOP + (1 - self.values.position(value)) * (_BOTTOM - _TOP)

    def points(self, numbers: Sequence[tuple[int, float]]) -> str:
        """Returns pairs of step and value as SVG points."""
        return " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in numbers)


def _draw(series: Sequence[Series], colors: Mapping[str, int]) -> Drawing:
    grid = _Grid(series)
    values, steps = grid.values, grid.steps
    scale = "; values on a logarithmic scale" if values.is_log else ""
    return Drawing(
        _description(series, values.is_log),
        list(zip(values.labels(), map(grid.y, values.ticks), strict=True)),
        list(zip(steps.labels(), map(grid.x, steps.ticks), strict=True)),
        f"step{scale}",
        grid.left,
        [_curve(grid, each, colors[each.split]) for each in series],
    )


def _value_axis(series: Sequence[Series]) -> Axis:
    values = [report.value for each in series for report in each.finite]
    low, high = min(values), max(values)
    metric = series[0].metric
    spreads = [s for name, s in _LOG_SPREADS.items() if name.fullmatch(metric)]
    is_log = low > 0 and any(high > low * spread for spread in spreads)
    return log_axis(low, high) if is_log else linear_axis(low, high)


def _curve(grid: _Grid, series: Series, color: int) -> Curve:
    segments = series.segments()
    is_sparse = sum(map(len, segments)) <= _MAX_VISIBLE_DOTS
    bands = [
        [(p.step, p.high) for p in segment]
        + [(p.step, p.low) for p in reversed(segment)]
        for segment in segments
        if series.reports_per_point > 1
    ]
    lines = [[(p.step, p.value) for p in segment] for segment in segments]
    dots = [
        Dot(
            grid.x(point.step),
            grid.y(point.value),
            f"{series.split}, step {point.step:,}: {number_text(point.value)}",
            is_sparse or len(segment) == 1,
        )
        for segment in segments
        for point in segment
    ]
    return Curve(
        color, list(map(grid.points, bands)), list(map(grid.points, lines)), dots
    )


def _description(series: Sequence[Series], is_log: bool) -> str:
    scale = ", on a logarithmic scale" if is_log else ""
    curves = [f"{each.split} {_range_text(each)}" for each in series if each.finite]
    return f"{series[0].metric} by step{scale}: {'; '.join(curves)}."


def _range_text(series: Series) -> str:
    """Returns the first and the last value in words."""
    reports = dict.fromkeys([series.finite[0], series.finite[-1]])
    ends = [f"{number_text(x.value)} at step {x.step:,}" for x in reports]
    return f"from {ends[0]} to {ends[1]}" if len(ends) > 1 else ends[0]
