r"""Schedules: the operations of each device, in order.

A schedule holds one column of operations for each device. It has no times: a device
runs its column in order and waits only for the messages an operation needs.

    device 1 |    F0 F1 B0 B1          F0: forward of micro-batch 0
    device 0 | F0 F1       B0 B1       B0: its backward

`by_name.make_schedule` turns a name such as "1f1b" into a schedule, made in by_rule.py.
The same object is checked (check.py), given stash slots (slots.py), simulated, drawn
and emitted as a TensorFlow graph.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator
from typing import NamedTuple

# The most steps that a stage may be ahead of the next stage, which may have as many
# mini-batches waiting. With 1, each slightly slower step there would block the stage.
MAX_STEPS_AHEAD = 2


class Kind(enum.Enum):
    """The kind of an operation.

    A forward pass stashes what its backward pass needs. If a RECOMPUTE comes between
    them, the forward pass stashes only what the RECOMPUTE needs. In a schedule with
    WEIGHT_GRADIENT operations, a BACKWARD computes only the gradients of the stage's
    inputs. An UPDATE applies the gradients of a step, and names the last micro-batch of
    the step. Only schedules of several steps have UPDATEs.

    With an OFFLOAD and a LOAD of the micro-batch, a forward pass also begins to copy
    what it stashes to the host's memory. The OFFLOAD waits until the copy is complete.
    The LOAD begins to copy it back, and the BACKWARD waits for it. Neither keeps the
    device busy.
    """

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    WEIGHT_GRADIENT = "W"
    UPDATE = "U"
    OFFLOAD = "O"
    LOAD = "L"

    # Members are unique. Enum's own hash of the name takes a third of a plan's time.
    __hash__ = object.__hash__

    @property
    def label(self) -> str:
        """The kind in words."""
        return self.name.lower().replace("_", " ")


COPIES = (Kind.OFFLOAD, Kind.LOAD)


class Op(NamedTuple):
    """An operation on one micro-batch in one stage."""

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
        num_stages: K. Stages are numbered from the input.
        num_micro_batches: M, of all steps. Micro-batches are numbered from the first
            examples.
        block_boundaries: the last stage of each block that is trained by its own loss.
            Such a stage gets no gradient from the next stage.
    """

    num_stages: int
    num_micro_batches: int
    columns: tuple[tuple[Op, ...], ...]
    block_boundaries: frozenset[int] = frozenset()

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.columns)

    @property
    def has_backward(self) -> bool:
        """True if some operation is a backward pass."""
        return Kind.BACKWARD in self.kinds

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of operations that occur."""
        return frozenset(op.kind for op in self._set)

    @functools.cached_property
    def num_steps(self) -> int:
        """N, the number of UPDATEs of each stage, or 1 if there are none."""
        updates = {op.micro_batch for op in self._set if op.kind is Kind.UPDATE}
        return max(len(updates), 1)

    @property
    def micro_batches_per_step(self) -> int:
        """The number of micro-batches in a step, M / N."""
        return self.num_micro_batches // self.num_steps

    def waits_for_next(self, op: Op) -> bool:
        """Returns whether an operation begins a step that may wait for the next stage.

        It waits if the stage would be more than MAX_STEPS_AHEAD steps ahead. This only
        happens to a stage that gets no gradients from the next stage, because it ends a
        block, or because the next stages have no trained weights.
        """
        kind, m, stage = op
        return (
            kind is Kind.FORWARD
            and stage + 1 < self.num_stages
            and Kind.UPDATE in self.kinds
            and m % self.micro_batches_per_step == 0
        )

    def offloads(self, op: Op) -> bool:
        """Returns whether the operation's micro-batch is offloaded in its stage."""
        offload = Op(Kind.OFFLOAD, op.micro_batch, op.stage)
        return Kind.OFFLOAD in self.kinds and offload in self

    def ops(self) -> Iterator[tuple[int, Op]]:
        """Yields all operations as (device, operation)."""
        for device, column in enumerate(self.columns):
            for op in column:
                yield device, op

    def device_of_stage(self) -> dict[int, int]:
        """Returns the device of each stage."""
        return {op.stage: device for device, op in self.ops()}

    @functools.cached_property
    def stage_devices(self) -> list[int]:
        """The device of each stage, in the stages' order."""
        return [device for _, device in sorted(self.device_of_stage().items())]

    def forward_part(self) -> Schedule:
        """Returns the schedule of only the forward passes, for evaluation."""
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
        """Returns the operations whose results `op` consumes."""
        kind, m, stage = op
        if kind is Kind.FORWARD:
            return self._dependencies_of_forward(op)
        if kind in (Kind.RECOMPUTE, Kind.OFFLOAD):
            return [Op(Kind.FORWARD, m, stage)]
        if kind is Kind.LOAD:
            return [Op(Kind.OFFLOAD, m, stage)]
        if kind is Kind.WEIGHT_GRADIENT:
            return [Op(Kind.BACKWARD, m, stage)]
        if kind is Kind.UPDATE:
            last = Op(Kind.WEIGHT_GRADIENT, m, stage)
            return [last if last in self else Op(Kind.BACKWARD, m, stage)]
        recompute = Op(Kind.RECOMPUTE, m, stage)
        needs = [recompute if recompute in self else Op(Kind.FORWARD, m, stage)]
        if self.offloads(op):
            needs.append(Op(Kind.LOAD, m, stage))
        if stage + 1 < self.num_stages and stage not in self.block_boundaries:
            needs.append(Op(kind, m, stage + 1))
        return needs

    def _dependencies_of_forward(self, op: Op) -> list[Op]:
        _, m, stage = op
        needs = [op._replace(stage=stage - 1)] if stage else []
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
