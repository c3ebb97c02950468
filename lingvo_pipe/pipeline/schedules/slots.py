"""Where each operation finds and puts what is kept between operations. Pure.

What is kept of a micro-batch for a stage goes through three stashes of the stage:

    FORWARD -> RESIDUALS -> BACKWARD -> WEIGHT_RESIDUALS -> WEIGHT_GRADIENT

or, if it is recomputed,

    FORWARD -> FOR_RECOMPUTE -> RECOMPUTE -> RESIDUALS -> BACKWARD

where what is for the recomputation are the stage's inputs, and the residuals of those
layers that are not computed again. A stash has numbered slots. Which operation uses
which is settled before anything runs: an operation puts into the lowest free slot, and
a slot is free again once it is read. So a stash has no more slots than the
micro-batches it ever holds at a time.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


class Kept(enum.Enum):
    """What a stage keeps of a micro-batch: one stash each."""

    FOR_RECOMPUTE = "for recompute"
    RESIDUALS = "residuals"
    WEIGHT_RESIDUALS = "weight residuals"


class Use(NamedTuple):
    """The stashes that an operation reads and then writes; None where none."""

    read: Kept | None
    write: Kept | None


class SlotPair(NamedTuple):
    """The slots that an operation reads and then writes; -1 where none."""

    read: int
    write: int


@dataclasses.dataclass(frozen=True)
class Slots:
    """The slots of a schedule.

    Attributes:
        columns: for each device, for each of its operations in order, the slots it
            uses, in the stashes that `stash_use` says.
        num_slots: for each stage, the size of each stash; 0 where unused.
    """

    columns: tuple[tuple[SlotPair, ...], ...]
    num_slots: tuple[Mapping[Kept, int], ...]


def stash_use(schedule: Schedule, op: Op) -> Use:
    """Which of its stage's stashes an operation uses. Without backward, none is."""
    kind, m, stage = op
    if kind is Kind.UPDATE:
        return Use(None, None)
    if kind is Kind.FORWARD:
        recompute = Op(Kind.RECOMPUTE, m, stage) in schedule
        kept = Kept.FOR_RECOMPUTE if recompute else Kept.RESIDUALS
        return Use(None, kept if schedule.has_backward else None)
    if kind is Kind.RECOMPUTE:
        return Use(Kept.FOR_RECOMPUTE, Kept.RESIDUALS)
    if kind is Kind.BACKWARD:
        weights_later = Kind.WEIGHT_GRADIENT in schedule.kinds
        return Use(Kept.RESIDUALS, Kept.WEIGHT_RESIDUALS if weights_later else None)
    return Use(Kept.WEIGHT_RESIDUALS, None)


def assign_slots(schedule: Schedule) -> Slots:
    """Gives each operation of a checked schedule its slots, as few as possible."""
    stashes = [{kept: _Stash() for kept in Kept} for _ in range(schedule.num_stages)]

    def slots_of(op: Op) -> SlotPair:
        use, of_stage = stash_use(schedule, op), stashes[op.stage]
        return SlotPair(
            -1 if use.read is None else of_stage[use.read].get(op.micro_batch),
            -1 if use.write is None else of_stage[use.write].put(op.micro_batch),
        )

    columns = tuple(tuple(map(slots_of, column)) for column in schedule.columns)
    num_slots = tuple(
        {kept: stash.num_slots for kept, stash in of_stage.items()}
        for of_stage in stashes
    )
    return Slots(columns, num_slots)


class _Stash:
    """The slots of one stash while operations are gone through."""

    def __init__(self) -> None:
        self.num_slots = 0
        self._free: list[int] = []
        self._taken: dict[int, int] = {}

    def put(self, micro_batch: int) -> int:
        if not self._free:
            self._free.append(self.num_slots)
            self.num_slots += 1
        slot = self._taken[micro_batch] = heapq.heappop(self._free)
        return slot

    def get(self, micro_batch: int) -> int:
        slot = self._taken.pop(micro_batch)
        heapq.heappush(self._free, slot)
        return slot


def kept_over_time(
    schedule: Schedule, device: int
) -> Iterator[Counter[tuple[int, Kept]]]:
    """After each operation of a device: how many micro-batches its stashes hold.

    Yields:
        The number for each (stage, kept). What an operation works on counts until the
        operation is done.
    """
    held: Counter[tuple[int, Kept]] = Counter()
    for op in schedule.columns[device]:
        use = stash_use(schedule, op)
        if use.write:
            held[op.stage, use.write] += 1
        if use.read:
            held[op.stage, use.read] -= 1
        yield held.copy()
