"""Results of trainings by scheme, batch size and seed, and means over seeds. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tools.local_study import costs

# Steps, ascending, and values after them.
Curve = Sequence[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class RowKey:
    """The scheme of blocks, batch size and seed that identify a training."""

    scheme: str
    batch_size: int
    seed: int

    @property
    def name(self) -> str:
        """The scheme, batch size and seed as text for the log."""
        return f"{self.scheme}, batch size {self.batch_size}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Record:
    """Metrics of an evaluation on the test set, after `step` steps."""

    step: int
    train_loss: float | None  # Mean over the steps since the last record, if any.
    test: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Cosines between each layer's local and true gradients, after `step` steps."""

    step: int
    layers: Mapping[str, float | None]  # In order; None without gradients.


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Bytes sent between two blocks in a step, for the whole mini-batch."""

    after: str  # Name of the layer before the boundary.
    forward: int
    backward: int
    weights: int  # Of shared layers, with their gradients.


_LISTS = {
    "blocks": costs.BlockCost,
    "boundaries": Boundary,
    "records": Record,
    "similarities": Similarity,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of a training. Records and similarities are in order of steps."""

    key: RowKey
    blocks: list[costs.BlockCost]
    boundaries: list[Boundary]  # If each block has a device.
    records: list[Record]
    similarities: list[Similarity]  # Empty for backpropagation: all would be 1.
    seconds: float  # On this machine; not compared.

    @property
    def num_steps(self) -> int:
        return self.records[-1].step

    def point(self, num_steps: int) -> costs.Point:
        """Returns the total cost and sequential time of `num_steps` steps, in FLOPs."""
        return costs.Point(
            costs.total_flops(self.blocks, num_steps * self.key.batch_size),
            costs.sequential_flops(self.blocks, num_steps),
        )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Row":
        """Inverts `dataclasses.asdict`."""
        lists = {
            name: [kind(**fields) for fields in plain[name]]
            for name, kind in _LISTS.items()
        }
        return cls(RowKey(**plain["key"]), seconds=plain["seconds"], **lists)


class Average(NamedTuple):
    """Trainings that differ only in their seeds, and means over these seeds."""

    scheme: str
    batch_size: int
    rows: list[Row]

    def test_curve(self, metric: str) -> Curve:
        """Returns a test metric's means over seeds, by step."""
        records = zip(*(row.records for row in self.rows), strict=True)
        return [
            (seeds[0].step, fmean(record.test[metric] for record in seeds))
            for seeds in records
        ]

    def trained_curve(self, metric: str) -> Curve:
        """Returns `test_curve` without its first record, which precedes training."""
        return self.test_curve(metric)[1:]

    def train_curve(self) -> Curve:
        """Returns training losses, averaged over seeds and steps between records."""
        records = zip(*(row.records for row in self.rows), strict=True)
        means = (
            (seeds[0].step, _mean(record.train_loss for record in seeds))
            for seeds in records
        )
        return [(step, mean) for step, mean in means if mean is not None]

    @property
    def row(self) -> Row:
        """The first training, for values that do not depend on the seed."""
        return self.rows[0]

    def similarities(self) -> dict[int, dict[str, float | None]]:
        """Returns mean cosines by step and layer, None for layers without gradients."""
        return {
            seeds[0].step: {
                layer: _mean(similarity.layers[layer] for similarity in seeds)
                for layer in seeds[0].layers
            }
            for seeds in zip(*(row.similarities for row in self.rows), strict=True)
        }


def averages(rows: Iterable[Row]) -> list[Average]:
    """Groups trainings by scheme and batch size, in order of first appearance."""
    rows_by_key: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        rows_by_key.setdefault((row.key.scheme, row.key.batch_size), []).append(row)
    return [
        Average(scheme, batch_size, seeds)
        for (scheme, batch_size), seeds in rows_by_key.items()
    ]


def metric_names(found: Sequence[Average]) -> list[str]:
    """Returns the names of test metrics: `loss`, and `accuracy` if there is one."""
    metrics = found[0].rows[0].records[0].test
    return [name for name in ("loss", "accuracy") if name in metrics]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
