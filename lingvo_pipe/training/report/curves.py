"""Curves of a run's metrics as SVG, in the colours of the page's style. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from lingvo_pipe.training.report.axis import (
    Axis,
    linear_axis,
    log_axis,
    number_text,
    step_axis,
)
from lingvo_pipe.training.report.elements import Html, element
from lingvo_pipe.training.report.series import Point, Series

_WIDTH, _HEIGHT = 420.0, 240.0
_RIGHT, _TOP, _BOTTOM = 24.0, 12.0, 40.0
_LEFT, _DIGIT_WIDTH = 14.0, 6.6  # of what is beside the labels of an axis; of a digit
_FEW_POINTS = 40  # which can each be seen.

# Metrics that are shown on a logarithmic scale where the largest number is so many
# times the least, since on a linear one the small ones could not be told apart.
_LOG_SPREADS = {
    re.compile(r"(.*_)?(loss|perplexity|pplx)"): 30.0,
    re.compile(r"(.*_)?(rate|norm)"): 1000.0,
}


def draw_curves(series: Sequence[Series], colors: Mapping[str, int]) -> Html:
    """A picture of one metric by step: a curve for each split, and what it shows.

    Args:
        series: of one metric; at least one.
        colors: the number of each split's colour.
    """
    metric = series[0].metric
    legend = [_legend_entry(each, colors[each.split]) for each in series]
    notes = [element("p", note) for note in _notes(series)]
    return element(
        "figure",
        element("figcaption", element("h3", metric), *legend),
        _svg(series, colors) if any(each.finite for each in series) else Html(""),
        *notes,
    )


def _legend_entry(series: Series, color: int) -> Html:
    return element(
        "span",
        element("span", class_=f"swatch color{color}"),
        series.split,
        class_="legend",
    )


def _notes(series: Sequence[Series]) -> list[str]:
    """What the curves don't show."""
    notes = []
    for each in series:
        if each.reports_per_point > 1:
            notes.append(
                f"{each.split}: each point is the mean of {each.reports_per_point} "
                "reports; the band goes from the least to the largest."
            )
        wrong = [report for report in each.reports if not math.isfinite(report.value)]
        if wrong:
            several = f"{len(wrong)} values are" if len(wrong) > 1 else "1 value is"
            first = f"{wrong[0].value} at step {wrong[0].step:,}"
            notes.append(f"{each.split}: {several} not finite, first {first}.")
    return notes


def _svg(series: Sequence[Series], colors: Mapping[str, int]) -> Html:
    across = step_axis(max(each.last.step for each in series))
    up = _value_axis(series)
    frame = _Frame(across, up)
    curves = [_curve(frame, each, colors[each.split]) for each in series]
    return element(
        "svg",
        *_grid(frame),
        *curves,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=_description(series, up.is_log),
    )


class _Frame:
    """Where numbers are in the picture.

    Attributes:
        across: the axis of steps.
        up: the axis of values.
        left: where the first begins.
    """

    def __init__(self, across: Axis, up: Axis):
        self.across, self.up = across, up
        self.left = _LEFT + _DIGIT_WIDTH * max(map(len, up.labels()))

    def x(self, step: float) -> float:
        """Of a step."""
        return self.left + self.across.place(step) * (_WIDTH - _RIGHT - self.left)

    def y(self, value: float) -> float:
        """Of a value."""
        return _TOP + (1 - self.up.place(value)) * (_HEIGHT - _BOTTOM - _TOP)


def _value_axis(series: Sequence[Series]) -> Axis:
    values = [report.value for each in series for report in each.finite]
    low, high = min(values), max(values)
    metric = series[0].metric
    spreads = [s for name, s in _LOG_SPREADS.items() if name.fullmatch(metric)]
    is_log = low > 0 and any(high > low * spread for spread in spreads)
    return log_axis(low, high) if is_log else linear_axis(low, high)


def _grid(frame: _Frame) -> list[Html]:
    """Lines and labels of both axes."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick, label in zip(frame.up.ticks, frame.up.labels(), strict=True):
        y = _at(frame.y(tick))
        parts.append(_line(_at(frame.left), y, _at(right), y))
        parts.append(_label(label, _at(frame.left - 6), y, "end", "0.35em"))
    for tick, label in zip(frame.across.ticks, frame.across.labels(), strict=True):
        x = _at(frame.x(tick))
        parts.append(_line(x, _at(bottom), x, _at(bottom + 4)))
        parts.append(_label(label, x, _at(bottom + 17), "middle"))
    middle = _at((frame.left + right) / 2)
    scale = "step; values on a logarithmic scale" if frame.up.is_log else "step"
    parts.append(_label(scale, middle, _at(_HEIGHT - 6), "middle"))
    return parts


def _line(x1: str, y1: str, x2: str, y2: str) -> Html:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="grid")


def _label(text: str, x: str, y: str, anchor: str, dy: str | None = None) -> Html:
    return element("text", text, x=x, y=y, dy=dy, text_anchor=anchor)


def _curve(frame: _Frame, series: Series, color: int) -> Html:
    segments = series.segments()
    points = [point for segment in segments for point in segment]
    is_band = series.reports_per_point > 1
    bands = [_band(frame, segment) for segment in segments] if is_band else []
    lines = [
        element("polyline", points=_places(frame, [(p.step, p.value) for p in segment]))
        for segment in segments
    ]
    alone = {segment[0] for segment in segments if len(segment) == 1}
    dots = [
        _dot(frame, series, point, len(points) <= _FEW_POINTS or point in alone)
        for point in points
    ]
    return element("g", *bands, *lines, *dots, class_=f"curve color{color}")


def _band(frame: _Frame, segment: Sequence[Point]) -> Html:
    above = [(point.step, point.high) for point in segment]
    below = [(point.step, point.low) for point in reversed(segment)]
    return element("polygon", points=_places(frame, above + below))


def _places(frame: _Frame, numbers: Sequence[tuple[int, float]]) -> str:
    return " ".join(f"{_at(frame.x(s))},{_at(frame.y(v))}" for s, v in numbers)


def _dot(frame: _Frame, series: Series, point: Point, is_seen: bool) -> Html:
    """A place that tells its number where the mouse is over it."""
    told = f"{series.split}, step {point.step:,}: {number_text(point.value)}"
    return element(
        "circle",
        element("title", told),
        cx=_at(frame.x(point.step)),
        cy=_at(frame.y(point.value)),
        r=3 if is_seen else 5,
        class_=None if is_seen else "unseen",
    )


def _at(place: float) -> str:
    return f"{place:.1f}"


def _description(series: Sequence[Series], is_log: bool) -> str:
    """The picture in words."""
    scale = ", on a logarithmic scale" if is_log else ""
    curves = [f"{each.split} {_course(each)}" for each in series if each.finite]
    return f"{series[0].metric} by step{scale}: {'; '.join(curves)}."


def _course(series: Series) -> str:
    first, last = series.finite[0], series.finite[-1]
    ending = f"{number_text(last.value)} at step {last.step:,}"
    if first == last:
        return ending
    return f"from {number_text(first.value)} at step {first.step:,} to {ending}"
