"""Peak bytes of each stage of a schedule, for any range of the layers. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from lingvo_pipe.pipeline.memory.call_bytes import (
    OPERATIONS,
    StashBytes,
    distinct_moments,
)
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind

# A device's other stages run, or an update, which needs no stash.
_IDLE = OPERATIONS[Kind.UPDATE, None]


class StageNeeds:
    """Peak bytes of each stage of a schedule, for any range of calls."""

    def __init__(self, memory: StageMemory, schedule: Schedule):
        """Initializes the needs for a training schedule."""
        self._memory = memory
        moments_of_stages = _moments(schedule)
        self._moments = list(map(_largest, moments_of_stages))
        self._idle = [
            _largest({moment for moment in moments if moment[1] == _IDLE})
            for moments in moments_of_stages
        ]

    def stage_keys(self) -> list[tuple[tuple[_Moment, ...], ...]]:
        """Returns a key for each stage, equal for stages with equal needs."""
        return [
            (tuple(sorted(moments)), tuple(sorted(idle)))
            for moments, idle in zip(self._moments, self._idle, strict=True)
        ]

    def __call__(self, stage: int, start: int, end: int, number: int = 1) -> int:
        """Returns the peak bytes of a number of stages like this one.

        One of them runs. Longer stages need no less.
        """
        return self._of_alike(stage, start, end, number, self._memory.stash(start, end))

    def stash(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of the stage's stash and workspace at their peak."""
        return _peak(self._moments[stage], self._memory.stash(start, end))

    def lower_bound(self, stage: int, start: int, end: int, number: int = 1) -> int:
        """Returns the peak bytes without the values that recomputation needs.

        So if two stages start or end at the same call, the longer one needs no less.
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


# Numbers of other micro-batches in each StashKind, and the stage's operation.
_Moment = tuple[tuple[int, ...], int]


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
    for stashes, distinct in distinct_moments(schedule):
        starts = range(0, len(stashes), len(StashKind))  # A stage's are together.
        held = {stashes[i][0]: slice(i, i + len(StashKind)) for i in starts}
        for before, stage, operation, numbers in distinct:
            if before is not None and before != stage:  # It holds this meanwhile.
                moments[before].add((numbers[held[before]], _IDLE))
            moments[stage].add((numbers[held[stage]], operation))
    return moments


def _largest(moments: set[_Moment]) -> list[_Moment]:
    """Returns the moments at which a stage may need most."""

    def size(moment: _Moment) -> tuple[int, bool]:
        numbers, operation = moment
        return sum(numbers), operation != _IDLE

    largest: list[_Moment] = []
    # None is dominated by a later one.
    for moment in sorted(moments, key=size, reverse=True):
        if not any(_dominates(larger, moment) for larger in largest):
            largest.append(moment)
    return largest


def _dominates(a: _Moment, b: _Moment) -> bool:
    same = b[1] in (a[1], _IDLE)
    return same and all(map(operator.ge, a[0], b[0]))
