"""Stash slots: numbered storage for tensors that wait between operations.

The tensors of a micro-batch go through three stashes of a stage:

    FORWARD -> RESIDUALS -> BACKWARD -> WEIGHT_RESIDUALS -> WEIGHT_GRADIENT

or, with recomputation,

    FORWARD -> FOR_RECOMPUTE -> RECOMPUTE -> RESIDUALS -> BACKWARD

If a micro-batch is offloaded, the host's memory holds a part of RESIDUALS or
FOR_RECOMPUTE from the OFFLOAD to the LOAD. This part counts as a stash of its own:

    OFFLOAD -> OFFLOADED -> LOAD

FOR_RECOMPUTE holds the values from which the recomputation starts, and the residuals of
layers that are not recomputed. A stash has numbered slots, and each operation's slots
are known before anything runs: an operation writes to the lowest free slot, and a slot
is free again after it is read. So a stash has a slot for each micro-batch at its peak.

    device 0 | F0 F1 F2       B0 F3 B1    B2    B3     (1F1B)
    slot       0  1  2        0  0  1     2     0
"""

import enum
import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


class StashKind(enum.Enum):
    """The kind of a stash. A stage has one stash of each kind."""

    FOR_RECOMPUTE = "for recompute"
    RESIDUALS = "residuals"
    WEIGHT_RESIDUALS = "weight residuals"
    OFFLOADED = "offloaded"

    __hash__ = object.__hash__  # See `Kind`.


class Use(NamedTuple):
    """The stash that an operation reads and the one that it then writes, if any."""

    read: StashKind | None
    write: StashKind | None


class SlotPair(NamedTuple):
    """The slot that an operation reads and the one that it then writes. -1 for none."""

    read: int
    write: int


class Slots(NamedTuple):
    """The slots of the operations, by device, and the sizes of stashes, by stage."""

    columns: tuple[tuple[SlotPair, ...], ...]
    num_slots: tuple[Mapping[StashKind, int], ...]


def stash_use(schedule: Schedule, op: Op) -> Use:
    """Returns the stashes that an operation uses, none in a schedule for evaluation."""
    kind, m, stage = op
    if kind is Kind.FORWARD:
        recomputes = Op(Kind.RECOMPUTE, m, stage) in schedule
        written = StashKind.FOR_RECOMPUTE if recomputes else StashKind.RESIDUALS
        return Use(None, written if schedule.has_backward else None)
    if kind is Kind.BACKWARD:
        is_split = Kind.WEIGHT_GRADIENT in schedule.kinds
        later = StashKind.WEIGHT_RESIDUALS if is_split else None
        return Use(StashKind.RESIDUALS, later)
    return _OTHER_USES[kind]


_OTHER_USES = {
    Kind.RECOMPUTE: Use(StashKind.FOR_RECOMPUTE, StashKind.RESIDUALS),
    Kind.WEIGHT_GRADIENT: Use(StashKind.WEIGHT_RESIDUALS, None),
    Kind.UPDATE: Use(None, None),
    Kind.OFFLOAD: Use(None, StashKind.OFFLOADED),
    Kind.LOAD: Use(StashKind.OFFLOADED, None),
}


def assign_slots(schedule: Schedule) -> Slots:
    """Returns slots for a checked schedule, as few as possible in each stash."""
    stashes = [
        {kind: _Stash() for kind in StashKind} for _ in range(schedule.num_stages)
    ]

    def slots_of(op: Op) -> SlotPair:
        use, of_stage = stash_use(schedule, op), stashes[op.stage]
        return SlotPair(
            -1 if use.read is None else of_stage[use.read].get(op.micro_batch),
            -1 if use.write is None else of_stage[use.write].put(op.micro_batch),
        )

    columns = tuple(tuple(map(slots_of, column)) for column in schedule.columns)
    num_slots = tuple(
        {kind: stash.num_slots for kind, stash in of_stage.items()}
        for of_stage in stashes
    )
    return Slots(columns, num_slots)


class _Stash:
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


class StashMoment(NamedTuple):
    """An operation of a device, and what the device stashes while the operation runs.

    `use` has the stashes that the operation reads and writes. `others` has the number
    of other stashed micro-batches by (stage, stash), for all stages of the device. The
    next iteration of `stash_moments` changes this mapping.
    """

    op: Op
    use: Use
    others: Mapping[tuple[int, StashKind], int]


def stash_moments(schedule: Schedule, device: int) -> Iterator[StashMoment]:
    """Yields a StashMoment for each operation of a device, in order."""
    stages = {op.stage for op in schedule.columns[device]}
    held = dict.fromkeys(itertools.product(stages, StashKind), 0)
    for op in schedule.columns[device]:
        use = stash_use(schedule, op)
        if use.read:
            held[op.stage, use.read] -= 1
        yield StashMoment(op, use, held)
        if use.write:
            held[op.stage, use.write] += 1
