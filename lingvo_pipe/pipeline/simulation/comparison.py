"""A predicted and a measured step, side by side as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from lingvo_pipe.pipeline.simulation.bubble import split_time
from lingvo_pipe.pipeline.simulation.timeline import Timeline

_NOTHING = 1e-9  # in seconds, or as a fraction: no measurement tells it from 0


def compare(predicted: Timeline, measured: Timeline) -> str:
    """A table of what was predicted and what was measured.

    For the mean of the devices and for each of them: the time by kind of operation and
    by reason of idling (see `bubble`), and by how much the measured exceeds the
    predicted one.

    Raises:
        ValueError: if they are timelines of different schedules.
    """
    if predicted.schedule != measured.schedule:
        raise ValueError(
            "Only timelines of one schedule can be compared; the predicted one and the "
            "measured one differ in what runs where in which order."
        )
    parts = [_parts(timeline) for timeline in (predicted, measured)]
    lines = [
        _row("", "predicted", "measured", "difference"),
        _seconds_row("step", predicted.step_seconds, measured.step_seconds),
        _row(
            "bubble",
            f"{predicted.bubble_fraction:.1%}",
            f"{measured.bubble_fraction:.1%}",
            _difference(predicted.bubble_fraction, measured.bubble_fraction),
        ),
    ]
    lines += _block("mean of the devices", *map(_mean_parts, parts))
    for device, of_device in enumerate(zip(*parts, strict=True)):
        lines += _block(f"device {device}", *of_device)
    return "\n".join(lines) + "\n"


def _parts(timeline: Timeline) -> list[dict[str, float]]:
    """For each device, the seconds of each part of the step, by name."""
    return [
        {kind.label: seconds for kind, seconds in split.busy.items()}
        | {
            "idle: filling, draining": split.idle.fill_drain,
            "idle: imbalance": split.idle.imbalance,
            "idle: communication": split.idle.communication,
            "idle: overhead": split.idle.overhead,
        }
        for split in split_time(timeline)
    ]


def _mean_parts(devices: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for parts in devices for name in parts)
    return {name: fmean(parts.get(name, 0.0) for parts in devices) for name in names}


def _block(
    title: str, predicted: dict[str, float], measured: dict[str, float]
) -> list[str]:
    rows = [
        _seconds_row(f"  {name}", predicted[name], measured[name]) for name in measured
    ]
    return ["", title, *rows]


def _seconds_row(name: str, predicted: float, measured: float) -> str:
    return _row(
        name,
        f"{predicted * 1e3:.3f} ms",
        f"{measured * 1e3:.3f} ms",
        _difference(predicted, measured),
    )


def _difference(predicted: float, measured: float) -> str:
    if predicted < _NOTHING:
        return ""
    return f"{measured / predicted - 1:+.1%}"


def _row(name: str, predicted: str, measured: str, difference: str) -> str:
    return f"{name:<26}{predicted:>14}{measured:>14}{difference:>12}".rstrip()
