r"""Schedules: what each device does, in which order. Pure data.

A schedule holds one column of operations for each device and says nothing of time: a
device runs its column in order and waits only for the messages an operation needs.

    device 1 |    F0 F1 B0 B1          F0: forward of micro-batch 0
    device 0 | F0 F1       B0 B1       B0: its backward

The same object is checked (check.py), given slots for what it keeps (slots.py),
simulated, drawn and emitted as a TensorFlow graph. The files beside make them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator
from typing import NamedTuple

# How many steps a stage may be ahead of the next one: so many mini-batches of what it
# hands on may wait there. With 1 it would wait for each step that takes a bit longer.
MAX_STEPS_AHEAD = 2


class Kind(enum.Enum):
    """What an operation does with a micro-batch on a stage.

    A forward pass keeps what its backward pass needs, unless a RECOMPUTE stands between
    them: then it keeps what that starts from, the stage's inputs. In a schedule with
    WEIGHT_GRADIENT operations a BACKWARD yields the gradients of the stage's inputs
    alone. An UPDATE changes the stage's weights by the gradients of a step, of which
    its micro-batch is the last; only schedules of several steps have them.
    """

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    WEIGHT_GRADIENT = "W"
    UPDATE = "U"

    @property
    def label(self) -> str:
        """The kind in words."""
        return self.name.lower().replace("_", " ")


class Op(NamedTuple):
    """One operation: what a device does with one micro-batch on one stage."""

    kind: Kind
    micro_batch: int
    stage: int

    def __str__(self) -> str:
        relation = "after" if self.kind is Kind.UPDATE else "of"
        return (
            f"{self.kind.label} {relation} micro-batch {self.micro_batch} on stage "
            f"{self.stage}"
        )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The operations of each device, in order.

    Attributes:
        num_stages: K, numbered from the input.
        num_micro_batches: M, numbered from the first examples; those of all steps.
        columns: for each device, its operations.
        block_ends: the stages to which no gradient comes back from the next: each ends
            a block of stages that is trained by a loss of its own.
    """

    num_stages: int
    num_micro_batches: int
    columns: tuple[tuple[Op, ...], ...]
    block_ends: frozenset[int] = frozenset()

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.columns)

    @property
    def has_backward(self) -> bool:
        """Whether it trains: some operation is a backward pass."""
        return Kind.BACKWARD in self.kinds

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of operations it has."""
        return frozenset(op.kind for op in self._set)

    @functools.cached_property
    def num_steps(self) -> int:
        """N: after so many UPDATEs of each stage, or without any, it is over."""
        updates = {op.micro_batch for op in self._set if op.kind is Kind.UPDATE}
        return max(len(updates), 1)

    @property
    def micro_batches_per_step(self) -> int:
        """M / N."""
        return self.num_micro_batches // self.num_steps

    def waits_for_next(self, op: Op) -> bool:
        """Whether it begins a step that a stage may not begin too far ahead.

        Where gradients come back from the next stage, it never has to wait. Where none
        do, as behind a block, or behind stages that have nothing to train, it may.
        """
        kind, m, stage = op
        return (
            kind is Kind.FORWARD
            and stage + 1 < self.num_stages
            and Kind.UPDATE in self.kinds
            and m % self.micro_batches_per_step == 0
        )

    def ops(self) -> Iterator[tuple[int, Op]]:
        """All operations as (device, operation)."""
        for device, column in enumerate(self.columns):
            for op in column:
                yield device, op

    def device_of_stage(self) -> dict[int, int]:
        """The device that runs each stage."""
        return {op.stage: device for device, op in self.ops()}

    def forward_part(self) -> Schedule:
        """The forward passes alone, each device's in the same order: evaluation."""
        columns = tuple(
            tuple(op for op in column if op.kind is Kind.FORWARD)
            for column in self.columns
        )
        return dataclasses.replace(self, columns=columns)

    def __contains__(self, op: Op) -> bool:
        return op in self._set

    @functools.cached_property
    def _set(self) -> frozenset[Op]:
        return frozenset(op for _, op in self.ops())

    def dependencies(self, op: Op) -> list[Op]:
        """The operations whose results `op` consumes."""
        kind, m, stage = op
        if kind is Kind.FORWARD:
            return self._needs_of_forward(op)
        if kind is Kind.RECOMPUTE:
            return [Op(Kind.FORWARD, m, stage)]
        if kind is Kind.WEIGHT_GRADIENT:
            return [Op(Kind.BACKWARD, m, stage)]
        if kind is Kind.UPDATE:
            last = Op(Kind.WEIGHT_GRADIENT, m, stage)
            return [last if last in self else Op(Kind.BACKWARD, m, stage)]
        recompute = Op(Kind.RECOMPUTE, m, stage)
        needs = [recompute if recompute in self else Op(Kind.FORWARD, m, stage)]
        if stage + 1 < self.num_stages and stage not in self.block_ends:
            needs.append(Op(kind, m, stage + 1))
        return needs

    def _needs_of_forward(self, op: Op) -> list[Op]:
        kind, m, stage = op
        needs = [Op(kind, m, stage - 1)] if stage else []
        if Kind.UPDATE not in self.kinds:
            return needs
        per_step = self.micro_batches_per_step
        last_before = m - m % per_step - 1
        if last_before >= 0:
            needs.append(Op(Kind.UPDATE, last_before, stage))
        far_before = last_before - MAX_STEPS_AHEAD * per_step
        if self.waits_for_next(op) and far_before >= 0:
            needs.append(Op(Kind.UPDATE, far_before, stage + 1))
        return needs
