"""Rows of the same scheme and batch size as one: the means over their seeds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from tools.local_study.pareto import Curve, Point
from tools.local_study.study_rows import Boundary, Row


class Average(NamedTuple):
    """What a scheme does with batches of a size.

    Attributes:
        scheme: of the blocks.
        batch_size: examples in a mini-batch.
        rows: one for each seed; costs are those of any.
    """

    scheme: str
    batch_size: int
    rows: list[Row]

    def test_curve(self, metric: str) -> Curve:
        """Steps, and means of a metric over the test set after them."""
        records = zip(*(row.records for row in self.rows), strict=True)
        return [(each[0].step, fmean(r.test[metric] for r in each)) for each in records]

    def train_curve(self) -> Curve:
        """Steps, and means of the loss in training over the steps up to them."""
        records = zip(*(row.records for row in self.rows), strict=True)
        return [
            (each[0].step, fmean(losses))
            for each in records
            for losses in [[r.train_loss for r in each if r.train_loss is not None]]
            if losses
        ]

    def point(self, num_steps: int) -> Point:
        """See `Row.point`."""
        return self.rows[0].point(num_steps)

    @property
    def num_steps(self) -> int:
        """How many were trained."""
        return self.rows[0].num_steps

    @property
    def boundaries(self) -> list[Boundary]:
        """See `Row`."""
        return self.rows[0].boundaries

    def similarities(self) -> dict[int, dict[str, float | None]]:
        """By moment and layer: mean cosines; None: the layer has no gradient."""
        moments = zip(*(row.similarities for row in self.rows), strict=True)
        return {
            each[0].step: {
                layer: _mean(similarity.layers[layer] for similarity in each)
                for layer in each[0].layers
            }
            for each in moments
        }


def averages(rows: Iterable[Row]) -> list[Average]:
    """In the order in which schemes and batch sizes come first."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.key.scheme, row.key.batch_size), []).append(row)
    return [Average(*key, own) for key, own in found.items()]


def metric_names(found: Sequence[Average]) -> list[str]:
    """Of the test set: `loss`, and `accuracy` where there is one."""
    known = found[0].rows[0].records[0].test
    return [name for name in ("loss", "accuracy") if name in known]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
