"""The study's charts. Needs matplotlib, but not TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from tools.local_study import study_rows
from tools.local_study.pareto import reached_losses

_COLORS = {
    "backpropagation": "#262626",
    "chunked": "#3f73b0",
    "greedy": "#e58b45",
    "overlapping": "#4fa37a",
}
_SHOWN = {"loss": "test loss", "accuracy": "test error"}
_INCHES = 3.4, 2.8  # of a panel
_DPI = 110
_DECADE = 10
_GIGA = 1e9


def draw_all(rows: Sequence[study_rows.Row], folder: Path) -> None:
    """Writes the charts to PNG files. Writes similarity.png only if there is data."""
    averages = study_rows.averages(rows)
    schemes = list(dict.fromkeys(average.scheme for average in averages))
    lines = [Line2D([], [], color=_COLORS[name], label=name) for name in schemes]
    style: dict[str, Any] = {"ncols": len(schemes), "frameon": False, "fontsize": 8}
    charts = {"steps": _steps, "cost_and_time": _cost_and_time, "pareto": _pareto}
    for name, draw in charts.items():
        figure = draw(averages)
        figure.legend(handles=lines, loc="outside lower center", **style)
        figure.savefig(folder / f"{name}.png")
    if local := [average for average in averages if average.similarities()]:
        _similarity(local).savefig(folder / "similarity.png")


def _steps(averages: Sequence[study_rows.Average]) -> Figure:
    """Draws test metrics over steps. Dashed lines are losses in training."""
    sizes, metrics = _batch_sizes(averages), study_rows.metric_names(averages)
    figure, panels = _panels(len(metrics), len(sizes))
    for row, metric in zip(panels, metrics, strict=True):
        for average in averages:
            panel = row[sizes.index(average.batch_size)]
            color = _COLORS[average.scheme]
            panel.plot(*np.transpose(_curve(average, metric)), color=color)
            if metric == "loss":
                curve = np.transpose(average.train_curve())
                panel.plot(*curve, "--", color=color, linewidth=0.8)
        for panel, size in zip(row, sizes, strict=True):
            _label(panel, f"batch size {size}", "steps", _SHOWN[metric])
            _scale(panel)
    return figure


def _cost_and_time(averages: Sequence[study_rows.Average]) -> Figure:
    """Draws test metrics over cost and over time. Larger batches have thicker lines."""
    sizes, metrics = _batch_sizes(averages), study_rows.metric_names(averages)
    figure, panels = _panels(len(metrics), 2)
    title = f"batch sizes {', '.join(map(str, sizes))}, from thin to thick"
    for row, metric in zip(panels, metrics, strict=True):
        for average in averages:
            steps, values = np.transpose(_curve(average, metric))
            points = [average.row.point(step) for step in steps]
            color = _COLORS[average.scheme]
            width = 0.8 + 0.7 * sizes.index(average.batch_size)
            for panel, flops in zip(row, np.transpose(points) / _GIGA, strict=True):
                panel.plot(flops, values, color=color, linewidth=width)
        for panel, name in zip(row, ("total cost", "sequential time"), strict=True):
            _label(panel, title, f"{name}, GFLOPs", _SHOWN[metric])
            _scale(panel)
            panel.set_xscale("log")
    return figure


def _pareto(averages: Sequence[study_rows.Average]) -> Figure:
    """Draws cost and time to reach each loss, in a curve for each scheme."""
    reached = reached_losses(averages)
    figure, panels = _panels(1, len(reached))
    for panel, (target, by_scheme) in zip(panels[0], reached.items(), strict=True):
        for scheme, best in by_scheme.items():
            costs, times = np.reshape([x.point for x in best], [-1, 2]).T / _GIGA
            panel.plot(costs, times, "o-", color=_COLORS[scheme], markersize=4)
            style = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 7}
            for one, point in zip(best, zip(costs, times, strict=True), strict=True):
                panel.annotate(str(one.batch_size), point, **style)
        title = f"to a test loss of {target:.3f}"
        _label(panel, title, "total cost, GFLOPs", "sequential time, GFLOPs")
        panel.margins(0.15)
        panel.set_xlim(left=0.0)
        panel.set_ylim(bottom=0.0)
    return figure


def _similarity(local: Sequence[study_rows.Average]) -> Figure:
    """Draws cosines of local and true gradients. Earlier steps have lighter lines."""
    sizes, schemes = _batch_sizes(local), list(dict.fromkeys(x.scheme for x in local))
    figure, panels = _panels(len(sizes), len(schemes), sharey=True)
    for average in local:
        panel = panels[sizes.index(average.batch_size)][schemes.index(average.scheme)]
        moments = average.similarities()
        for strength, (step, by_layer) in zip(
            np.linspace(0.3, 1.0, len(moments)), moments.items(), strict=True
        ):
            shown = {name: x for name, x in by_layer.items() if x is not None}
            style: dict[str, Any] = {"alpha": strength, "markersize": 3}
            style["color"] = _COLORS[average.scheme]
            names, cosines = list(shown), list(shown.values())
            panel.plot(names, cosines, "o-", label=f"step {step}", **style)
        title = f"{average.scheme}, batch size {average.batch_size}"
        _label(panel, title, "", "cosine with the true gradient")
        panel.tick_params(axis="x", rotation=60)
        panel.axhline(0.0, color="#bbbbbb", linewidth=0.6)
        panel.legend(fontsize=6, frameon=False)
    return figure


def _curve(average: study_rows.Average, metric: str) -> study_rows.Curve:
    """Returns a metric's curve from the second record on. Accuracies become errors."""
    curve = average.trained_curve(metric)
    return [(step, 1.0 - x) for step, x in curve] if metric == "accuracy" else curve


def _batch_sizes(averages: Sequence[study_rows.Average]) -> list[int]:
    return sorted({average.batch_size for average in averages})


def _panels(
    num_rows: int, num_columns: int, sharey: bool = False
) -> tuple[Figure, Any]:
    width, height = _INCHES
    size = max(2, num_columns) * width, num_rows * height + 0.4
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, sharey=sharey)


def _label(panel: Axes, title: str, x: str, y: str) -> None:
    panel.set_title(title, fontsize=9)
    panel.set_xlabel(x, fontsize=8)
    panel.set_ylabel(y, fontsize=8)
    panel.tick_params(labelsize=7)
    panel.grid(visible=True, which="both", color="#ebebeb", linewidth=0.5)


def _scale(panel: Axes) -> None:
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    shown = (1, 2, 5) if high > _DECADE * low else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    panel.yaxis.set_major_locator(LogLocator(subs=shown))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
