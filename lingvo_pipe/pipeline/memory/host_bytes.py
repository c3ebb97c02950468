"""Bytes that a schedule offloads to the memory of its devices' hosts."""

import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.memory.stage_memory import KIND_INDEX, StageMemory
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind

_CHANGES = {Kind.FORWARD: 1, Kind.BACKWARD: -1}


def host_bytes(
    memory: StageMemory, schedule: Schedule, boundaries: Sequence[int]
) -> list[int]:
    """Returns the most bytes that each device has on its host, or on their way.

    Counts a micro-batch that is offloaded from its forward to its backward pass.
    """
    stages = itertools.pairwise([0, *boundaries])
    held = [memory.stash(*stage).held for stage in stages]
    offloaded = [-of_stage[KIND_INDEX[StashKind.OFFLOADED]] for of_stage in held]
    return [
        max(
            itertools.accumulate(
                _CHANGES.get(op.kind, 0) * offloaded[op.stage]
                for op in column
                if schedule.offloads(op)
            ),
            default=0,
        )
        for column in schedule.columns
    ]
