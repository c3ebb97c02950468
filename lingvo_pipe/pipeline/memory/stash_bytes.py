"""Bytes that a stage needs for a micro-batch, by stash and by operation. Pure."""

from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import StashKind, StashMoment

# Operations of a training schedule, and the stash that they write.
OPERATIONS = {
    pair: i
    for i, pair in enumerate(
        [
            (Kind.FORWARD, StashKind.FOR_RECOMPUTE),
            (Kind.FORWARD, StashKind.RESIDUALS),
            (Kind.RECOMPUTE, StashKind.RESIDUALS),
            (Kind.BACKWARD, None),
            (Kind.BACKWARD, StashKind.WEIGHT_RESIDUALS),
            (Kind.WEIGHT_GRADIENT, None),
            (Kind.UPDATE, None),
            (Kind.FORWARD, None),  # In an evaluation.
        ]
    )
}


class BytesByOperation(NamedTuple):
    """Bytes of a stage during each of `OPERATIONS`, in their order."""

    forward_for_recompute: int
    forward: int
    recompute: int
    backward: int
    input_backward: int
    weight_backward: int
    update: int = 0
    evaluation: int = 0


class StashBytes(NamedTuple):
    """Bytes that a stage needs for a micro-batch.

    Attributes:
        held: bytes in each `StashKind`, while other micro-batches are worked on.
        during: bytes during each operation on it, with the workspace.
    """

    held: tuple[int, ...]
    during: BytesByOperation


def operation_index(moment: StashMoment) -> int:
    """Returns the index of an operation in `StashBytes.during`."""
    return OPERATIONS[moment.op.kind, moment.use.write]
