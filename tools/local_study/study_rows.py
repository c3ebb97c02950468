"""Results: a row per scheme, batch size and seed, and means over seeds. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tools.local_study.costs import BlockCost, Point, sequential_flops, total_flops

# Steps, ascending, and values after them.
Curve = Sequence[tuple[int, float]]


class RowKey(NamedTuple):
    """The settings of a training.

    Attributes:
        scheme: scheme of the blocks.
        batch_size: examples in a mini-batch, B.
        seed: seed of initial values, dropout and the like.
    """

    scheme: str
    batch_size: int
    seed: int

    @property
    def name(self) -> str:
        """Text for the log."""
        return f"{self.scheme}, batch size {self.batch_size}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Record:
    """Measurements after a number of steps.

    Attributes:
        step: number of steps.
        train_loss: mean of the model's own loss over the steps since the last record,
            or None without such steps.
        test: metrics over the test set.
    """

    step: int
    train_loss: float | None
    test: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Cosines of layers' local and true gradients.

    Attributes:
        step: number of steps before; the batch is the next step's.
        layers: cosines by layer, in order; None for layers without gradients.
    """

    step: int
    layers: Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Bytes between two blocks in a step, for the whole mini-batch.

    Attributes:
        after: name of the layer before the boundary.
        forward: bytes of activations.
        backward: bytes of the activations' gradients.
        weights: bytes of shared layers' weights and their gradients.
    """

    after: str
    forward: int
    backward: int
    weights: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
        key: settings of the training.
        blocks: cost of each block.
        boundaries: boundaries between devices, if each block has one.
        records: measurements by ascending step.
        similarities: cosines by ascending step; empty for backpropagation, where all
            are 1.
        seconds: time on this machine; not part of the comparison.
    """

    key: RowKey
    blocks: list[BlockCost]
    boundaries: list[Boundary]
    records: list[Record]
    similarities: list[Similarity]
    seconds: float

    @property
    def num_steps(self) -> int:
        """Number of steps trained."""
        return self.records[-1].step

    def point(self, num_steps: int) -> Point:
        """Returns total cost and sequential time of a number of steps, in FLOPs."""
        num_examples = num_steps * self.key.batch_size
        return Point(
            total_flops(self.blocks, num_examples),
            sequential_flops(self.blocks, num_steps),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        plain = dataclasses.asdict(self)
        plain["key"] = self.key._asdict()
        plain["blocks"] = [block._asdict() for block in self.blocks]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Row:
        """Returns the row that `to_dict` was called on."""
        return cls(
            key=RowKey(**plain["key"]),
            blocks=[BlockCost(**block) for block in plain["blocks"]],
            boundaries=[Boundary(**each) for each in plain["boundaries"]],
            records=[Record(**each) for each in plain["records"]],
            similarities=[Similarity(**each) for each in plain["similarities"]],
            seconds=plain["seconds"],
        )


class Average(NamedTuple):
    """Means over the seeds of one scheme and batch size.

    Attributes:
        scheme: scheme of the blocks.
        batch_size: examples in a mini-batch.
        rows: one per seed.
    """

    scheme: str
    batch_size: int
    rows: list[Row]

    def test_curve(self, metric: str) -> Curve:
        """Returns means of a metric over the test set."""
        records = zip(*(row.records for row in self.rows), strict=True)
        return [(each[0].step, fmean(r.test[metric] for r in each)) for each in records]

    def train_curve(self) -> Curve:
        """Returns means of the loss in training over the steps up to each record."""
        records = zip(*(row.records for row in self.rows), strict=True)
        return [
            (each[0].step, mean)
            for each in records
            if (mean := _mean(r.train_loss for r in each)) is not None
        ]

    @property
    def row(self) -> Row:
        """A row, for the costs that all rows share."""
        return self.rows[0]

    def similarities(self) -> dict[int, dict[str, float | None]]:
        """Returns mean cosines by step and layer; None for layers without gradients."""
        moments = zip(*(row.similarities for row in self.rows), strict=True)
        return {
            each[0].step: {
                layer: _mean(similarity.layers[layer] for similarity in each)
                for layer in each[0].layers
            }
            for each in moments
        }


def averages(rows: Iterable[Row]) -> list[Average]:
    """Returns the averages of rows, in order of first appearance."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.key.scheme, row.key.batch_size), []).append(row)
    return [Average(*key, own) for key, own in found.items()]


def metric_names(found: Sequence[Average]) -> list[str]:
    """Returns the test set's metrics: `loss`, and `accuracy` if present."""
    known = found[0].rows[0].records[0].test
    return [name for name in ("loss", "accuracy") if name in known]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
