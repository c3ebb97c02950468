"""Images of timelines, drawn by matplotlib."""

import itertools
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import IO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Schedule
from lingvo_pipe.pipeline.simulation.timeline import TimedOp, Timeline

Color = tuple[float, float, float]

_COLORS = {
    Kind.FORWARD: to_rgb("#3f73b0"),
    Kind.RECOMPUTE: to_rgb("#a184bf"),
    Kind.BACKWARD: to_rgb("#e58b45"),
    Kind.WEIGHT_GRADIENT: to_rgb("#4fa37a"),
    Kind.UPDATE: to_rgb("#b0504f"),
    Kind.OFFLOAD: to_rgb("#3d3d3d"),
    Kind.LOAD: to_rgb("#8c6d3f"),
}
_IDLE = to_rgb("#ebebeb")
_ANY_KIND = to_rgb("#6e6e6e")
_DARK = to_rgb("#262626")
_LIGHT = to_rgb("#ffffff")

_INCHES_PER_OP, _MIN_INCHES, _MAX_INCHES = 0.22, 7.5, 15.0  # The image's width.
_INCHES_PER_DEVICE = 0.34
_INCHES_PER_PANEL = 0.75  # For the title and the gap between panels.
_BAR_HEIGHT = 0.86  # As a fraction of a device's row.
_COPY_HEIGHT = 0.1  # Of a bar of copies, at the edge of a device's bar.
_MIN_POINTS, _MAX_POINTS = 4.5, 8.5  # Size of the numbers in boxes.
_DIGIT_WIDTH = 0.68  # In font sizes, with a share of the margin.


def draw_timelines(
    timelines: Mapping[str, Timeline], path: str | PathLike[str] | IO[bytes]
) -> None:
    """Draws timelines one above the other on one time axis.

    A row is a device. A box is an operation, with its micro-batch's number if it fits.
    If a device runs several stages, later stages are lighter. Thin boxes are copies: to
    the host at the upper edge of the row, from the host at the lower edge.

    The image's `path` ends in .png, .pdf or .svg, or is an open file, to which a PNG is
    written. `timelines`, by title, are not empty.
    """
    seconds = max(timeline.step_seconds for timeline in timelines.values())
    figure = Figure(figsize=_size(timelines), dpi=200, layout="constrained")
    panels = figure.subplots(
        len(timelines),
        sharex=True,
        squeeze=False,
        height_ratios=[len(timeline.columns) for timeline in timelines.values()],
    )[:, 0]
    for panel, (name, timeline) in zip(panels, timelines.items(), strict=True):
        _prepare(panel, name, timeline)
        panel.set_xlim(0, seconds * 1e3)
    panels[-1].set_xlabel("ms", color=_DARK)
    figure.legend(
        handles=_legend([timeline.schedule for timeline in timelines.values()]),
        loc="outside lower center",
        ncols=8,
        frameon=False,
        handlelength=1.2,
        handleheight=1.0,
        labelcolor=_DARK,
    )
    figure.draw_without_rendering()  # Fixes the layout, and so the sizes.
    inches = panels[0].get_window_extent().width / figure.dpi
    points_per_second = 72 * inches / seconds
    for panel, timeline in zip(panels, timelines.values(), strict=True):
        _draw_boxes(panel, timeline, points_per_second)
        _write_numbers(panel, timeline, points_per_second)
    figure.savefig(path)


def _size(timelines: Mapping[str, Timeline]) -> tuple[float, float]:
    num_ops = max(len(c) for t in timelines.values() for c in t.columns)
    num_devices = sum(len(timeline.columns) for timeline in timelines.values())
    width = min(max(num_ops * _INCHES_PER_OP, _MIN_INCHES), _MAX_INCHES)
    height = num_devices * _INCHES_PER_DEVICE + len(timelines) * _INCHES_PER_PANEL
    return width, height + _INCHES_PER_PANEL


def _prepare(panel: Axes, name: str, timeline: Timeline) -> None:
    seconds = timeline.step_seconds / timeline.schedule.num_steps
    summary = f"{seconds * 1e3:.1f} ms a step, bubble {timeline.bubble_fraction:.1%}"
    panel.set_title(name, loc="left", fontsize=10, fontweight="bold", color=_DARK)
    panel.set_title(summary, loc="right", fontsize=9.5, color=_DARK)
    num_devices = len(timeline.columns)
    panel.set_ylim(-0.5, num_devices - 0.5)
    panel.set_yticks(range(num_devices), [f"device {d}" for d in range(num_devices)])
    panel.tick_params(labelsize=8.5, length=0, axis="y", labelcolor=_DARK)
    panel.tick_params(labelsize=8.5, length=3, axis="x", labelcolor=_DARK)
    panel.spines[["left", "right", "top"]].set_visible(False)


def _draw_boxes(panel: Axes, timeline: Timeline, points_per_second: float) -> None:
    for device, column in enumerate(timeline.columns):
        row = (device - _BAR_HEIGHT / 2, _BAR_HEIGHT)
        panel.broken_barh([(0.0, timeline.step_seconds * 1e3)], row, facecolors=[_IDLE])
        widths = [timed.seconds * points_per_second for timed in column]
        panel.broken_barh(
            [(timed.start * 1e3, timed.seconds * 1e3) for timed in column],
            row,
            facecolors=_colors(column),
            edgecolors="white",
            linewidths=[min(0.5, 0.08 * width) for width in widths],
        )
    for device, copies in enumerate(timeline.copies):
        for timed in copies:
            is_upper = timed.op.kind is Kind.OFFLOAD
            edge = _BAR_HEIGHT / 2 - _COPY_HEIGHT if is_upper else -_BAR_HEIGHT / 2
            panel.broken_barh(
                [(timed.start * 1e3, timed.seconds * 1e3)],
                (device + edge, _COPY_HEIGHT),
                facecolors=[_COLORS[timed.op.kind]],
                edgecolors="white",
                linewidths=0.3,
            )


def _write_numbers(panel: Axes, timeline: Timeline, points_per_second: float) -> None:
    """Writes micro-batch numbers in one size: nine of ten fit, if that is legible."""
    num_digits = len(str(timeline.schedule.num_micro_batches - 1))
    points_per_second /= num_digits * _DIGIT_WIDTH
    fitting = [
        timed.seconds * points_per_second
        for _, timed in timeline.ops()
        if timed.op.kind not in COPIES  # They take none of the device's time.
    ]
    size = float(np.clip(np.percentile(fitting, 10), _MIN_POINTS, _MAX_POINTS))
    min_size = 0.999 * size  # Equal boxes differ in the last bits.
    for device, column in enumerate(timeline.columns):
        for timed, color in zip(column, _colors(column), strict=True):
            if timed.seconds * points_per_second >= min_size:
                panel.text(
                    (timed.start + timed.end) / 2 * 1e3,
                    device,
                    str(timed.op.micro_batch),
                    size=size,
                    color=_LIGHT if sum(color) < 1.9 else _DARK,
                    ha="center",
                    va="center_baseline",
                )


def _colors(column: Sequence[TimedOp]) -> list[Color]:
    ops = [timed.op for timed in column]
    stages = sorted({op.stage for op in ops})
    return [
        _lighter(_COLORS[op.kind], stages.index(op.stage), len(stages)) for op in ops
    ]


def _lighter(color: Color, index: int, num_stages: int) -> Color:
    white = 0.55 * index / max(num_stages - 1, 1)
    red, green, blue = (part + (1 - part) * white for part in color)
    return red, green, blue


def _legend(schedules: Sequence[Schedule]) -> list[Patch]:
    present = {kind for schedule in schedules for kind in schedule.kinds}
    colors = {kind.label: _COLORS[kind] for kind in _COLORS if kind in present}
    colors["idle"] = _IDLE
    of_devices = [
        sorted({op.stage for op in column})
        for schedule in schedules
        for column in schedule.columns
    ]
    # All devices' first stages, all devices' second stages, ...
    by_index = [set(stages) - {None} for stages in itertools.zip_longest(*of_devices)]
    if len(by_index) > 1:
        for i, stages in enumerate(by_index):
            label = f"stages {min(stages)} to {max(stages)}"
            colors[label] = _lighter(_ANY_KIND, i, len(by_index))
    return [Patch(facecolor=color, label=label) for label, color in colors.items()]
