"""Peak bytes of each stage of a schedule, for any range of the layers."""

from __future__ import annotations

import copy
import operator
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from lingvo_pipe.pipeline.memory.call_bytes import (
    OPERATIONS,
    StashBytes,
    operation_index,
)
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, StashMoment, stash_moments

# The operation while the device runs another stage, or an update: it needs no stash.
_IDLE = OPERATIONS[Kind.UPDATE, None]


class StageNeeds:
    """Peak bytes of each stage of a schedule, whichever calls the stage has."""

    def __init__(self, memory: StageMemory, schedule: Schedule):
        """Initializes the needs. `schedule` must be for training."""
        self._memory = memory
        moments_of_stages = _moments(schedule)
        self._moments = list(map(_largest, moments_of_stages))
        self._idle = [
            _largest({moment for moment in moments if moment.operation == _IDLE})
            for moments in moments_of_stages
        ]

    def of(self, memory: StageMemory) -> StageNeeds:
        """Returns the needs of the same schedule's stages with other memory."""
        needs = copy.copy(self)
        needs._memory = memory
        return needs

    def stage_keys(self) -> list[tuple[tuple[_Moment, ...], ...]]:
        """Returns a key for each stage. Stages with equal keys have equal needs."""
        return [
            (tuple(sorted(moments)), tuple(sorted(idle)))
            for moments, idle in zip(self._moments, self._idle, strict=True)
        ]

    def __call__(self, stage: int, start: int, end: int, number: int = 1) -> int:
        """Returns the peak bytes of `number` stages like `stage`, on one device.

        One of these stages runs, and the others wait. Of two stages with the same
        start, the longer one needs no less.
        """
        return self._of_alike(stage, start, end, number, self._memory.stash(start, end))

    def stash(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of the stage's stash and workspace at their peak."""
        return _peak(self._moments[stage], self._memory.stash(start, end))

    def lower_bound(self, stage: int, start: int, end: int, number: int = 1) -> int:
        """Returns the peak bytes, without the values from which recomputation starts.

        Of two stages with the same start or end, the longer one needs no less.
        """
        stash = self._memory.lower_bound(start, end)
        return self._of_alike(stage, start, end, number, stash)

    def _of_alike(
        self, stage: int, start: int, end: int, number: int, stash: StashBytes
    ) -> int:
        memory = self._memory
        idle = memory.held(start, end)
        peak = idle + _peak(self._moments[stage], stash)
        if number > 1:
            peak += (number - 1) * (idle + _peak(self._idle[stage], stash))
        return peak


class _Moment(NamedTuple):
    """The micro-batches of a stage on a device, while an operation runs."""

    others: tuple[int, ...]  # Number of other micro-batches in each StashKind.
    operation: int  # Index of the operation.


def _peak(moments: Iterable[_Moment], stash: StashBytes) -> int:
    held, during = stash
    return max(
        (
            sum(map(operator.mul, numbers, held)) + during[operation]
            for numbers, operation in moments
        ),
        default=0,  # No other stage runs on the device.
    )


def _moments(schedule: Schedule) -> list[set[_Moment]]:
    moments: list[set[_Moment]] = [set() for _ in range(schedule.num_stages)]
    first, second, third, away = StashKind  # A loop over it would take longer.

    def add(moment: StashMoment, stage: int, operation: int) -> None:
        held = moment.others
        numbers = held[stage, first], held[stage, second], held[stage, third]
        moments[stage].add(_Moment((*numbers, held[stage, away]), operation))

    for device in range(schedule.num_devices):
        last = None
        for moment in stash_moments(schedule, device):
            stage = moment.op.stage
            if last is not None and last != stage:
                add(moment, last, _IDLE)  # It holds this until it runs again.
            add(moment, stage, operation_index(moment))
            last = stage
    return moments


def _largest(moments: set[_Moment]) -> list[_Moment]:
    """Returns the moments at which a stage may need the most bytes."""

    def size(moment: _Moment) -> tuple[int, bool]:
        *stashed, away = moment.others
        return sum(stashed) - away, moment.operation != _IDLE

    largest: list[_Moment] = []
    # In this order, no moment is dominated by a later one.
    for moment in sorted(_ends_of_rows(moments), key=size, reverse=True):
        if not any(_dominates(larger, moment) for larger in largest):
            largest.append(moment)
    return largest


def _ends_of_rows(moments: Iterable[_Moment]) -> set[_Moment]:
    """Leaves out moments between two others that cannot both need fewer bytes.

    In a row of moments, each has one more micro-batch in RESIDUALS than the one before,
    and one more in OFFLOADED. Bytes are linear in these numbers, so an end of the row
    needs the most.
    """
    rows: dict[Hashable, list[_Moment]] = {}
    for moment in moments:
        (first, second, third, away), operation = moment
        row = first, second - away, third, operation
        rows.setdefault(row, []).append(moment)
    return {end(row) for row in rows.values() for end in (min, max)}


def _dominates(a: _Moment, b: _Moment) -> bool:
    *more, less_away = a.others
    *less, more_away = b.others
    same = b.operation in (a.operation, _IDLE)
    return same and less_away <= more_away and all(map(operator.ge, more, less))
