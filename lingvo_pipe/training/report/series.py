"""Metrics of a run as series of numbers by step. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

_KEYS = ("step", "split")
_MOST_POINTS = 200

# Words in names of metrics, by what is better.
_LESS = {"loss", "losses", "pplx", "perplexity", "error", "errors"}
_MORE = {"accuracy", "bleu", "chrf", "precision", "recall", "f1"}


class Report(NamedTuple):
    """One number that was reported."""

    step: int
    value: float


class Point(NamedTuple):
    """What is drawn at one place: one report, or several in a row.

    Attributes:
        step: of the last of them.
        value: their mean.
        low: the least.
        high: the largest.
    """

    step: int
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric of one split.

    Attributes:
        metric: its name.
        split: what was measured, such as `train`.
        reports: at least one, by step.
    """

    metric: str
    split: str
    reports: tuple[Report, ...]

    @property
    def last(self) -> Report:
        """The one of the latest step."""
        return self.reports[-1]

    @property
    def finite(self) -> list[Report]:
        """Those that are numbers."""
        return [report for report in self.reports if math.isfinite(report.value)]

    def best(self, best_metric: str | None = None) -> Report | None:
        """The best; None where that can't be told.

        Args:
            best_metric: as of `task.eval.best_metric`, which says of one metric
                whether more of it is better.
        """
        sign = _direction(self.metric, best_metric)
        if not sign or not self.finite:
            return None
        return max(self.finite, key=lambda report: sign * report.value)

    @property
    def reports_per_point(self) -> int:
        """How many reports become a point of the curve."""
        return math.ceil(len(self.reports) / _MOST_POINTS)

    def segments(self) -> list[list[Point]]:
        """What to draw: points that are joined, and between them what is no number."""
        n = self.reports_per_point
        groups = [self.reports[i : i + n] for i in range(0, len(self.reports), n)]
        segments: list[list[Point]] = [[]]
        for group in groups:
            values = [x.value for x in group if math.isfinite(x.value)]
            if values:
                mean = float(np.mean(values))
                point = Point(group[-1].step, mean, min(values), max(values))
                segments[-1].append(point)
            else:
                segments.append([])
        return [segment for segment in segments if segment]


def series_by_metric(
    records: Iterable[Mapping[str, Any]], origin: str = ""
) -> dict[str, list[Series]]:
    """Sorts what was logged.

    Args:
        records: as of `read_metrics`; of several of one step the last one counts.
        origin: who logged it, if not the trainer; a part of the splits' names.

    Returns:
        For each metric, in order of appearance, a series for each split.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        split = f"{record['split']}, {origin}" if origin else record["split"]
        for metric in record:
            if metric not in _KEYS:
                by_step = found.setdefault(metric, {}).setdefault(split, {})
                by_step[record["step"]] = record[metric]
    return {
        metric: [
            Series(metric, split, tuple(Report(*x) for x in sorted(by_step.items())))
            for split, by_step in splits.items()
        ]
        for metric, splits in found.items()
    }


def _direction(metric: str, best_metric: str | None) -> int:
    """1 if more of a metric is better, -1 if less is, and 0 if nobody can tell."""
    if best_metric is not None and metric == best_metric.removeprefix("-"):
        return -1 if best_metric.startswith("-") else 1
    words = set(re.findall(r"[a-z0-9]+", metric.lower()))
    return bool(words & _MORE) - bool(words & _LESS)
