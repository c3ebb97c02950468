"""Peak bytes of each stage of a schedule, for any range of the layers. Pure."""

from __future__ import annotations

import operator

from lingvo_pipe.pipeline.memory.stage_memory import (
    OPERATIONS,
    StageMemory,
    StashBytes,
    operation_index,
)
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, stash_moments

# A device's other stages run, or an update, which needs no stash.
_IDLE = OPERATIONS[Kind.UPDATE, None]


class StageNeeds:
    """Peak bytes of each stage of a schedule, for any range of calls."""

    def __init__(self, memory: StageMemory, schedule: Schedule):
        """Initializes the needs for a training schedule."""
        self._memory = memory
        self._moments = _moments(schedule)

    def stage_keys(self) -> list[tuple[_Moment, ...]]:
        """Returns a key for each stage, equal for stages with equal needs."""
        return [tuple(sorted(moments)) for moments in self._moments]

    def __call__(self, stage: int, start: int, end: int) -> int:
        """Returns the stage's peak bytes; a longer stage needs no less."""
        return self._persistent(start, end) + self.stash(stage, start, end)

    def stash(self, stage: int, start: int, end: int) -> int:
        """Returns the bytes of the stage's stash and workspace at their peak."""
        return self._peak(stage, self._memory.stash(start, end))

    def lower_bound(self, stage: int, start: int, end: int) -> int:
        """Returns the peak bytes without the values that recomputation needs.

        So if two stages start or end at the same call, the longer one needs no less.
        """
        own = self._peak(stage, self._memory.lower_bound(start, end))
        return self._persistent(start, end) + own

    def _persistent(self, start: int, end: int) -> int:
        return self._memory.weights(start, end) + self._memory.accumulators(start, end)

    def _peak(self, stage: int, each: StashBytes) -> int:
        held, during = each
        return max(
            sum(map(operator.mul, numbers, held)) + during[operation]
            for numbers, operation in self._moments[stage]
        )


# Numbers of other micro-batches in each StashKind, and the stage's operation.
_Moment = tuple[tuple[int, ...], int]


def _moments(schedule: Schedule) -> list[list[_Moment]]:
    """Returns for each stage the moments at which it may need most.

    Those that others dominate are left out.
    """
    found: list[set[_Moment]] = [set() for _ in range(schedule.num_stages)]
    device_of_stage = schedule.device_of_stage()
    for device in range(schedule.num_devices):
        stages = [stage for stage, own in device_of_stage.items() if own == device]
        for moment in stash_moments(schedule, device):
            for stage in stages:
                held = tuple(moment.others[stage, kind] for kind in StashKind)
                own = operation_index(moment) if stage == moment.op.stage else _IDLE
                found[stage].add((held, own))
    return [
        [a for a in moments if not any(a != b and _dominates(b, a) for b in moments)]
        for moments in found
    ]


def _dominates(a: _Moment, b: _Moment) -> bool:
    same = b[1] in (a[1], _IDLE)
    return same and all(map(operator.ge, a[0], b[0]))
