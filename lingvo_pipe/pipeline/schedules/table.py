"""Schedules as numbers: the structure of a device's loop, and the rows fed to it.

    operation                       branch  micro-batch  read slot  write slot
    forward of 0 on stage 1     ->     0         0          -1          0
    forward of 1 on stage 1     ->     0         1          -1          1
    backward of 0 on stage 1    ->     1         0           0         -1

The branches define the graph. Two schedules with the same branches on the same devices
run on one graph, with different rows.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, assign_slots, stash_use

# Kinds of operations that differ where their micro-batch is offloaded.
_OFFLOADING = (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD)


class Branch(NamedTuple):
    """A kind of operation on one stage, which writes to `stash` unless that is None.

    If it `offloads`, a part of what the stage stashes goes to the host.
    """

    stage: int
    kind: Kind
    stash: StashKind | None
    waits_for_next: bool = False  # See `Schedule`.
    offloads: bool = False


class FedTable(NamedTuple):
    """The inputs of a device's loop, all as arrays, as tensors or as specs.

    Attributes:
        rows: branch, micro-batch, read slot and write slot of each operation,
            `[operations, 4]` int32.
        num_slots: the number of slots of each stash, `[stashes]` int32.
    """

    rows: Any
    num_slots: Any


@dataclasses.dataclass(frozen=True)
class Table:
    """The operations of one device.

    `stashes` are the (stage, stash) pairs that the distinct branches use. `num_slots`
    are the sizes of these stashes. See `FedTable` for the rows.
    """

    branches: tuple[Branch, ...]
    stashes: tuple[tuple[int, StashKind], ...]
    rows: tuple[tuple[int, int, int, int], ...]
    num_slots: tuple[int, ...]

    @property
    def trains(self) -> bool:
        """True if some operation is a backward pass."""
        return any(branch.kind is Kind.BACKWARD for branch in self.branches)

    @property
    def fed(self) -> FedTable:
        """The rows and numbers of slots as arrays, as the device's loop takes them."""
        return FedTable(
            np.array(self.rows, np.int32), np.array(self.num_slots, np.int32)
        )

    @property
    def structure(self) -> tuple:
        """The part of the table that determines the graph. The rest is fed."""
        return self.branches, self.stashes


def make_tables(schedule: Schedule) -> list[Table]:
    """Returns the table of each device for a checked schedule.

    Raises:
        ValueError: if a device has no operations.
    """
    idle = [i for i, column in enumerate(schedule.columns) if not column]
    if idle:
        raise UserValueError(
            path="schedule",
            expected="operations for each device",
            got=Words(f"none for devices {idle}"),
            hint="Leave them out.",
        )
    slots = assign_slots(schedule)
    tables = []
    for column, slot_pairs in zip(schedule.columns, slots.columns, strict=True):
        written = [stash_use(schedule, op).write for op in column]
        by_operation = [
            Branch(
                op.stage,
                op.kind,
                stash,
                schedule.waits_for_next(op),
                schedule.offloads(op) and op.kind in _OFFLOADING,
            )
            for op, stash in zip(column, written, strict=True)
        ]
        branches = sorted(set(by_operation), key=_sort_key)
        stashes = [
            (stage, stash)
            for stage in sorted({branch.stage for branch in branches})
            for stash, number in slots.num_slots[stage].items()
            if number and stash is not StashKind.OFFLOADED  # The host has it.
        ]
        rows = [
            (branches.index(branch), op.micro_batch, *pair)
            for branch, op, pair in zip(by_operation, column, slot_pairs, strict=True)
        ]
        num_slots = [slots.num_slots[stage][stash] for stage, stash in stashes]
        tables.append(
            Table(tuple(branches), tuple(stashes), tuple(rows), tuple(num_slots))
        )
    return tables


def _sort_key(branch: Branch) -> tuple[int, str, str, bool, bool]:
    stash = branch.stash.value if branch.stash else ""
    *_, waits_for_next, offloads = branch
    return branch.stage, branch.kind.value, stash, waits_for_next, offloads
