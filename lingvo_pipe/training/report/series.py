"""A run's metrics as series of numbers by step."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

_KEYS = ("step", "split")
_MAX_POINTS = 200
_LARGE = 1e6  # Integers from here on are written with an exponent.

# Words in names of metrics that should be low, or high.
_LOW = {"loss", "losses", "pplx", "perplexity", "error", "errors"}
_HIGH = {"accuracy", "bleu", "chrf", "precision", "recall", "f1"}


class Report(NamedTuple):
    """A metric's reported value at a step."""

    step: int
    value: float


class Point(NamedTuple):
    """A point of a curve: the mean, minimum and maximum of reports up to `step`."""

    step: int
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Series:
    """The reports of a metric for a split such as `train`, at least one, by step."""

    metric: str
    split: str
    reports: tuple[Report, ...]

    @property
    def last(self) -> Report:
        """Report of the latest step."""
        return self.reports[-1]

    @property
    def finite(self) -> list[Report]:
        """Reports of finite values."""
        return [report for report in self.reports if math.isfinite(report.value)]

    def best(self, best_metric: str | None = None) -> Report | None:
        """Returns the best report, or None if it is unknown what is better."""
        sign = _direction(self.metric, best_metric)
        if not sign or not self.finite:
            return None
        return max(self.finite, key=lambda report: sign * report.value)

    @property
    def reports_per_point(self) -> int:
        """Number of reports per point of the curve."""
        return math.ceil(len(self.reports) / _MAX_POINTS)

    def points(self) -> list[Point]:
        """Returns the curve's points. A point without a finite report is NaN."""
        n = self.reports_per_point
        points = []
        for start in range(0, len(self.reports), n):
            group = self.reports[start : start + n]
            values = [x.value for x in group if math.isfinite(x.value)] or [math.nan]
            mean = float(np.mean(values))
            points.append(Point(group[-1].step, mean, min(values), max(values)))
        return points


def series_by_metric(
    records: Iterable[Mapping[str, Any]], origin: str = ""
) -> dict[str, list[Series]]:
    """Returns each metric's series, one per split. Adds `origin` to splits' names."""
    splits_by_metric: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        split = f"{record['split']}, {origin}" if origin else record["split"]
        for metric in record:
            if metric not in _KEYS:
                by_step = splits_by_metric.setdefault(metric, {}).setdefault(split, {})
                by_step[record["step"]] = record[metric]
    return {
        metric: [
            Series(metric, split, tuple(Report(*x) for x in sorted(by_step.items())))
            for split, by_step in splits.items()
        ]
        for metric, splits in splits_by_metric.items()
    }


def number_text(value: float) -> str:
    """Returns a number as a short text: `0.9944`, `1,234`, `3e-5`, `nan`."""
    if value.is_integer() and abs(value) < _LARGE:
        return f"{value:,.0f}"
    return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", f"{value:.4g}")


def _direction(metric: str, best_metric: str | None) -> int:
    """Returns 1 if a metric should be high, -1 if low, and 0 if unknown."""
    if best_metric is not None and metric == best_metric.removeprefix("-"):
        return -1 if best_metric.startswith("-") else 1
    words = set(re.findall(r"[a-z0-9]+", metric.lower()))
    return bool(words & _HIGH) - bool(words & _LOW)
