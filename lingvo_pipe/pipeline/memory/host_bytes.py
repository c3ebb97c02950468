"""Bytes that a schedule offloads to the memory of its devices' hosts."""

import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.memory.stage_memory import KIND_INDEX, StageMemory
from lingvo_pipe.pipeline.schedules.offload import stage_kinds
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind

_CHANGES = {Kind.FORWARD: 1, Kind.BACKWARD: -1}


def offloaded_bytes(
    memory: StageMemory, schedule: Schedule, boundaries: Sequence[int]
) -> list[int]:
    """Returns the bytes of a micro-batch that each stage copies to the host."""
    stages = itertools.pairwise([0, *boundaries])
    held = [memory.stash(*stage).held for stage in stages]
    copies = [Kind.OFFLOAD in kinds for kinds in stage_kinds(schedule)]
    return [
        -of_stage[KIND_INDEX[StashKind.OFFLOADED]] * is_copied
        for of_stage, is_copied in zip(held, copies, strict=True)
    ]


def host_bytes(
    memory: StageMemory, schedule: Schedule, boundaries: Sequence[int]
) -> list[int]:
    """Returns the peak bytes that each device has on its host or in transit.

    An offloaded micro-batch counts from its forward pass to its backward pass.
    """
    offloaded = offloaded_bytes(memory, schedule, boundaries)
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
