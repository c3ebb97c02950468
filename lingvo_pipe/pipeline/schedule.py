r"""Schedules: what each device does, in which order. Pure data.

GPipe for K = 3 stages and M = 4 micro-batches; time runs to the right:

    device 2 |       F0 F1 F2 F3  B0 B1 B2 B3
    device 1 |    F0 F1 F2 F3        B0 B1 B2 B3
    device 0 | F0 F1 F2 F3              B0 B1 B2 B3
               '--.--'                  '--.--'
               K - 1 steps of bubble, filling and draining

A schedule holds one column of operations for each device and says nothing of time: a
device runs its column in order and waits only for the messages an operation needs. The
same object is checked, simulated, drawn and emitted as a TensorFlow graph.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import NamedTuple


class Kind(enum.Enum):
    """What an operation does with a micro-batch on a stage."""

    FORWARD = "F"
    BACKWARD = "B"


class Op(NamedTuple):
    """One operation: a stage's forward or backward pass over one micro-batch."""

    kind: Kind
    micro_batch: int
    stage: int

    def __str__(self) -> str:
        name = self.kind.name.lower()
        return f"{name} of micro-batch {self.micro_batch} on stage {self.stage}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The operations of each device, in order.

    Attributes:
        num_stages: K, numbered from the input.
        num_micro_batches: M, numbered from the first examples.
        columns: for each device, its operations.
    """

    num_stages: int
    num_micro_batches: int
    columns: tuple[tuple[Op, ...], ...]

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.columns)

    @property
    def has_backward(self) -> bool:
        """Whether it trains: some operation is a backward pass."""
        return any(op.kind is Kind.BACKWARD for _, op in self.ops())

    def ops(self) -> Iterator[tuple[int, Op]]:
        """All operations as (device, operation)."""
        for device, column in enumerate(self.columns):
            for op in column:
                yield device, op

    def device_of_stage(self) -> dict[int, int]:
        """The device that runs each stage."""
        return {op.stage: device for device, op in self.ops()}


def dependencies(op: Op, num_stages: int) -> list[Op]:
    """The operations whose results `op` consumes."""
    kind, micro_batch, stage = op
    if kind is Kind.FORWARD:
        return [Op(kind, micro_batch, stage - 1)] if stage else []
    needs = [Op(Kind.FORWARD, micro_batch, stage)]
    if stage + 1 < num_stages:
        needs.append(Op(kind, micro_batch, stage + 1))
    return needs


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes; a device a stage (GPipe, 2.2)."""
    return _all_of_each_kind(num_stages, num_micro_batches, list(Kind))


def forward_only(num_stages: int, num_micro_batches: int) -> Schedule:
    """Forward passes alone, for evaluation; a device a stage."""
    return _all_of_each_kind(num_stages, num_micro_batches, [Kind.FORWARD])


def _all_of_each_kind(
    num_stages: int, num_micro_batches: int, kinds: list[Kind]
) -> Schedule:
    for name, value in (("stages", num_stages), ("micro-batches", num_micro_batches)):
        if value < 1:
            raise ValueError(f"A schedule needs at least 1 of its {name}; got {value}.")
    columns = tuple(
        tuple(Op(kind, m, stage) for kind in kinds for m in range(num_micro_batches))
        for stage in range(num_stages)
    )
    return Schedule(num_stages, num_micro_batches, columns)
