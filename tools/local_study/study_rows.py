"""What the study has found of one scheme, batch size and seed. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tools.local_study.costs import BlockCost, sequential_flops, total_flops
from tools.local_study.pareto import Point


class RowKey(NamedTuple):
    """What is trained.

    Attributes:
        scheme: of the blocks.
        batch_size: examples in a mini-batch, B.
        seed: of first values, dropout and the like.
    """

    scheme: str
    batch_size: int
    seed: int

    @property
    def name(self) -> str:
        """For lines about it."""
        return f"{self.scheme}, batch size {self.batch_size}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured after a number of steps.

    Attributes:
        step: how many.
        train_loss: the mean of the model's own loss over the steps since the record
            before; None: there was none.
        test: metrics over the test set.
    """

    step: int
    train_loss: float | None
    test: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Cosines of layers' local gradients and true ones.

    Attributes:
        step: after how many steps, on the batch of the next.
        layers: by name, in order; None: the layer has no gradient.
    """

    step: int
    layers: Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Bytes between two blocks in a step, of the whole mini-batch.

    Attributes:
        after: the name of the layer before it.
        forward: of activations.
        backward: of gradients of these.
        weights: of shared layers' weights, and their gradients, if there are any.
    """

    after: str
    forward: int
    backward: int
    weights: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
        key: what was trained.
        blocks: what each costs.
        boundaries: between layers that are on different devices, if each block has one.
        records: by ascending steps.
        similarities: likewise; none for backpropagation, of which all are 1.
        seconds: what it took on this machine; no part of the comparison.
    """

    key: RowKey
    blocks: list[BlockCost]
    boundaries: list[Boundary]
    records: list[Record]
    similarities: list[Similarity]
    seconds: float

    @property
    def num_steps(self) -> int:
        """How many were trained."""
        return self.records[-1].step

    def point(self, num_steps: int) -> Point:
        """Total cost and sequential time of so many steps, in FLOPs."""
        num_examples = num_steps * self.key.batch_size
        return Point(
            total_flops(self.blocks, num_examples),
            sequential_flops(self.blocks, num_steps),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = dataclasses.asdict(self)
        plain["key"] = self.key._asdict()
        plain["blocks"] = [block._asdict() for block in self.blocks]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Row:
        """Of what `to_dict` has made."""
        return cls(
            key=RowKey(**plain["key"]),
            blocks=[BlockCost(**block) for block in plain["blocks"]],
            boundaries=[Boundary(**each) for each in plain["boundaries"]],
            records=[Record(**each) for each in plain["records"]],
            similarities=[Similarity(**each) for each in plain["similarities"]],
            seconds=plain["seconds"],
        )
