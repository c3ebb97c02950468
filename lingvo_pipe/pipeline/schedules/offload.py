r"""Offload: what a forward pass stashes waits in the host's memory.

GPipe on one device, whose copies to and from the host run beside its operations:

    operations    F0 F1 O0 F2 O1 L0 F3 O2 L1 B0 O3 L2 B1 L3 B2 B3
    to the host      [0]   [1]      [2]      [3]
    from the host                  [0]      [1]      [2]   [3]

The device holds the micro-batch that it works on, one on its way to the host, and one
on its way back. An OFFLOAD waits until the copy that the forward pass began has ended.
So the device never runs ahead of the copies, whatever their speed.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def offloaded(schedule: Schedule) -> Schedule:
    """Returns a copy of a schedule in which micro-batches are offloaded.

    The OFFLOAD comes one operation after the forward pass, and the LOAD one operation
    before the backward pass and its RECOMPUTE, so each copy runs during an operation. A
    micro-batch is left on the device if no operation would run between the two.

    Raises:
        ValueError: if the schedule has OFFLOAD operations.
    """
    if Kind.OFFLOAD in schedule.kinds:
        raise UserValueError(
            path="offload",
            expected="None or a list of cells, because the schedule has OFFLOAD "
            "operations of its own",
            got="always",
        )
    columns = tuple(tuple(_with_copies(column)) for column in schedule.columns)
    return dataclasses.replace(schedule, columns=columns)


def stage_kinds(schedule: Schedule) -> list[set[Kind]]:
    """Returns the kinds of each stage's operations."""
    kinds: list[set[Kind]] = [set() for _ in range(schedule.num_stages)]
    for _, op in schedule.ops():
        kinds[op.stage].add(op.kind)
    return kinds


def roles_in_stage(
    kinds: Collection[Kind], recomputed: Sequence[bool], offloaded: Sequence[bool]
) -> tuple[list[bool], list[bool]]:
    """Returns whether each cell of a stage is recomputed, and whether offloaded.

    `kinds` are the kinds of the stage's operations. A cell for which both are allowed
    is offloaded only if the stage offloads and recomputes nothing.
    """
    offloads, recomputes = Kind.OFFLOAD in kinds, Kind.RECOMPUTE in kinds
    pairs = list(zip(recomputed, offloaded, strict=True))
    away = [offloads and y and not (recomputes and x) for x, y in pairs]
    return [x and not y for x, y in zip(recomputed, away, strict=True)], away


def _with_copies(column: tuple[Op, ...]) -> Iterator[Op]:
    position = {op: i for i, op in enumerate(column)}
    offload_after: dict[int, Op] = {}
    load_before: dict[int, Op] = {}
    for op, i in position.items():
        if op.kind is Kind.BACKWARD:
            first = position[op._replace(kind=Kind.FORWARD)] + 1
            recomputes = column[i - 1] == op._replace(kind=Kind.RECOMPUTE)
            last = i - 2 if recomputes else i - 1
            if last - first > 1:
                offload_after[first] = op._replace(kind=Kind.OFFLOAD)
                load_before[last] = op._replace(kind=Kind.LOAD)
    for i, op in enumerate(column):
        if i in load_before:
            yield load_before[i]
        yield op
        if i in offload_after:
            yield offload_after[i]
