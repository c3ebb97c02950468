"""Bytes of a model's layers, of weights that they share, and of stashes. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.slots import StashKind, StashMoment, stash_moments


class Workspace(NamedTuple):
    """Bytes during each operation of a layer's phases.

    Weights, residuals and accumulators do not count, nor inputs of the forward pass.
    Gradients do: outputs' during a whole backward pass, inputs' and weights' from when
    they are computed until it ends.
    """

    forward: tuple[int, ...] = (0,)
    backward: tuple[int, ...] = (0,)
    input_backward: tuple[int, ...] = (0,)
    weight_backward: tuple[int, ...] = (0,)


class CallBytes(NamedTuple):
    """Bytes of a layer, or of the loss, at its position in the model."""

    weights: int
    accumulators: int  # Of its gradients.
    residuals: int  # Its own that its backward pass needs, per micro-batch.
    weight_residuals: int  # The same for its deferred weight gradients.
    recomputed: bool  # Wherever the schedule recomputes.
    used: Sequence[int]  # Numbers of the values that its forward pass takes.
    made: Sequence[int]  # Numbers of the values that it makes.
    residual_values: Sequence[int] = ()  # Values that are residuals too.
    weight_residual_values: Sequence[int] = ()
    new_weight_residuals: int = 0  # Of `weight_residuals`, those that are no residuals.
    workspace: Workspace = Workspace()


class SharedWeight(NamedTuple):
    """A weight that several calls use. It is on the device of the first."""

    num_bytes: int
    calls: Sequence[int]  # Ascending; at least two.


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
    """Bytes that a stage needs for a micro-batch."""

    # Bytes in each `StashKind`, while other micro-batches are worked on.
    held: tuple[int, ...]
    during: BytesByOperation  # Bytes during each operation on it, with the workspace.


def operation_index(moment: StashMoment) -> int:
    """Returns the index of an operation in `StashBytes.during`."""
    return OPERATIONS[moment.op.kind, moment.use.write]


class DeviceMoments(NamedTuple):
    """The moments of a device that differ in what it stashes or runs."""

    stashes: Sequence[tuple[int, StashKind]]
    # The stage that ran before, the stage, `operation_index`, and the numbers of other
    # micro-batches in each of `stashes`.
    distinct: Collection[tuple[int | None, int, int, tuple[int, ...]]]


@functools.lru_cache(maxsize=2)  # A search asks for a schedule's several times.
def distinct_moments(schedule: Schedule) -> list[DeviceMoments]:
    """Returns the moments of each device."""

    def of_device(device: int) -> DeviceMoments:
        before: int | None = None
        distinct: set[tuple[int | None, int, int, tuple[int, ...]]] = set()
        others: Collection[tuple[int, StashKind]] = ()
        for moment in stash_moments(schedule, device):
            stage, others = moment.op.stage, moment.others
            numbers = tuple(moment.others.values())
            distinct.add((before, stage, operation_index(moment), numbers))
            before = stage
        return DeviceMoments(list(others), distinct)

    return list(map(of_device, range(schedule.num_devices)))
