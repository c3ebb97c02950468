"""A schedule as numbers: what a device's loop is built from, and what it is fed. Pure.

    operation                       branch  micro-batch  read slot  write slot
    forward of 0 on stage 1     ->     0         0          -1          0
    forward of 1 on stage 1     ->     0         1          -1          1
    backward of 0 on stage 1    ->     1         0           0         -1

Branches are structure: two schedules with the same branches on the same devices run on
one graph, with different rows.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import Kept, assign_slots, stash_use


class Branch(NamedTuple):
    """A kind of operation on a stage.

    Attributes:
        stage: the stage.
        kind: the kind.
        kept: the stash that it writes to, if any.
        waits_for_next: see `Schedule`.
    """

    stage: int
    kind: Kind
    kept: Kept | None
    waits_for_next: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """One device's operations.

    Attributes:
        branches: the distinct ones.
        stashes: the (stage, kept) that they use.
        rows: for each operation branch, micro-batch, read slot, write slot.
        num_slots: for each of `stashes`.
    """

    branches: tuple[Branch, ...]
    stashes: tuple[tuple[int, Kept], ...]
    rows: tuple[tuple[int, int, int, int], ...]
    num_slots: tuple[int, ...]

    @property
    def trains(self) -> bool:
        """Whether some operation is a backward pass."""
        return any(branch.kind is Kind.BACKWARD for branch in self.branches)

    @property
    def updates(self) -> bool:
        """Whether some operation changes weights."""
        return any(branch.kind is Kind.UPDATE for branch in self.branches)

    @property
    def fed(self) -> NestedMap:
        """What is fed: rows and numbers of slots, int32."""
        return NestedMap(
            rows=np.array(self.rows, np.int32),
            num_slots=np.array(self.num_slots, np.int32),
        )

    @property
    def structure(self) -> tuple:
        """What a graph is built from, the rest being fed."""
        return self.branches, self.stashes


def make_tables(schedule: Schedule) -> list[Table]:
    """The table of each device, for a checked schedule.

    Raises:
        ValueError: if a device has nothing to do.
    """
    idle = [i for i, column in enumerate(schedule.columns) if not column]
    if idle:
        raise ValueError(
            "Each device of a pipeline must have operations; in this schedule devices "
            f"{idle} have none. Leave them out."
        )
    slots = assign_slots(schedule)
    tables = []
    for column, slot_pairs in zip(schedule.columns, slots.columns, strict=True):
        by_operation = [
            Branch(
                op.stage,
                op.kind,
                stash_use(schedule, op).write,
                schedule.waits_for_next(op),
            )
            for op in column
        ]
        branches = sorted(set(by_operation), key=_order)
        stages = sorted({branch.stage for branch in branches})
        stashes = [
            (stage, kept)
            for stage in stages
            for kept, number in slots.num_slots[stage].items()
            if number
        ]
        rows = [
            (branches.index(branch), op.micro_batch, *pair)
            for branch, op, pair in zip(by_operation, column, slot_pairs, strict=True)
        ]
        num_slots = [slots.num_slots[stage][kept] for stage, kept in stashes]
        tables.append(
            Table(tuple(branches), tuple(stashes), tuple(rows), tuple(num_slots))
        )
    return tables


def _order(branch: Branch) -> tuple[int, str, str, bool]:
    kept = branch.kept.value if branch.kept else ""
    return branch.stage, branch.kind.value, kept, branch.waits_for_next
