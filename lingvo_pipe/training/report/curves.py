"""Curves of a run's metrics, drawn by matplotlib."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingvo_pipe.training.report.series import Series, number_text

COLORS = ("#2f66b0", "#c4561a", "#2f8a63", "#7d55ad", "#a8324f", "#6b6f16")
_DARK, _FAINT = "#59636e", "#d1d9e0"
_INCHES, _FONT_SIZE = (4.2, 2.4), 8
_EDGES = {"left": 0.15, "right": 0.92, "bottom": 0.17, "top": 0.92}
_MANY_TICKS = 100  # A logarithmic scale of a larger spread has ticks at powers of ten.
_MAX_MARKED = 40  # A curve of more points has markers as small as the line.

# A metric has a logarithmic scale if its largest value is more than this many times the
# smallest, since a linear scale would hide differences between small values.
_LOG_SPREADS = {
    re.compile(r"(.*_)?(loss|perplexity|pplx)"): 30.0,
    re.compile(r"(.*_)?(rate|norm)"): 1000.0,
}


class Figure(NamedTuple):
    """Curves of a metric by step, as SVG, with the color of each split, and notes."""

    metric: str
    svg: bytes | None
    description: str  # The curves in words.
    colors: Mapping[str, str]
    notes: list[str]


def make_figure(series: Sequence[Series], colors: Mapping[str, str]) -> Figure:
    """Returns the figure of a metric, given its series and the splits' colors."""
    finite = [curve for curve in series if curve.finite]
    is_log = _is_log(finite)
    scale = ", on a logarithmic scale" if is_log else ""
    curves = "; ".join(f"{curve.split} {_range_text(curve)}" for curve in finite)
    return Figure(
        series[0].metric,
        _draw(finite, colors, is_log) if finite else None,
        f"{series[0].metric} by step{scale}: {curves}.",
        {curve.split: colors[curve.split] for curve in series},
        [note for curve in series for note in _notes(curve)],
    )


def _draw(series: Sequence[Series], colors: Mapping[str, str], is_log: bool) -> bytes:
    # Imported here: few of the trainer's jobs write a page.
    import matplotlib

    # Not in the user's own style.
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "svg.hashsalt": "curve"}):
        return _svg(series, colors, is_log)


def _svg(series: Sequence[Series], colors: Mapping[str, str], is_log: bool) -> bytes:
    from matplotlib import figure, ticker

    image = figure.Figure(figsize=_INCHES)
    axes = image.subplots(gridspec_kw=_EDGES)
    for curve in series:
        color, points = colors[curve.split], curve.points()
        steps, values, lows, highs = zip(*points, strict=True)
        size = 3.5 if len(points) <= _MAX_MARKED else 1.2
        axes.plot(
            steps,
            values,
            "o-",
            color=color,
            linewidth=1.2,
            markersize=size,
            clip_on=False,  # Points on an edge are whole.
        )
        if curve.reports_per_point > 1:
            axes.fill_between(steps, lows, highs, color=color, alpha=0.2, linewidth=0)
    axes.set_xlim(0, max(1, *(curve.last.step for curve in series)))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if is_log:
        axes.set_yscale("log")
        low, high = axes.dataLim.intervaly
        subs = (1, 2, 5) if high < low * _MANY_TICKS else (1,)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
        low, high = axes.dataLim.intervaly
        if 0 <= low <= high / 2:
            axes.set_ylim(bottom=0)
    scale = "; values on a logarithmic scale" if is_log else ""
    axes.set_xlabel(f"step{scale}", fontsize=_FONT_SIZE, color=_DARK)
    axes.tick_params(which="both", labelsize=_FONT_SIZE, labelcolor=_DARK, color=_FAINT)
    axes.grid(axis="y", color=_FAINT, linewidth=0.8)
    axes.spines[:].set_visible(False)
    file = io.BytesIO()
    image.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _is_log(series: Sequence[Series]) -> bool:
    values = [report.value for curve in series for report in curve.finite]
    spreads = [
        s for x, s in _LOG_SPREADS.items() if values and x.fullmatch(series[0].metric)
    ]
    return any(max(values) > min(values) * spread > 0 for spread in spreads)


def _range_text(series: Series) -> str:
    reports = dict.fromkeys([series.finite[0], series.finite[-1]])
    ends = [f"{number_text(x.value)} at step {x.step:,}" for x in reports]
    return f"from {ends[0]} to {ends[1]}" if len(ends) > 1 else ends[0]


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
