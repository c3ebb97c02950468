"""Types for the bytes of layers, of shared weights and of stashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.schedules.slots import StashKind, StashMoment


class Workspace(NamedTuple):
    """Bytes of temporary tensors, during each TensorFlow operation of a layer's passes.

    Weights, residuals, accumulators and the forward pass's inputs do not count.
    Gradients of outputs count during the whole backward pass. Gradients of inputs and
    weights count from their computation until the pass ends.
    """

    forward: tuple[int, ...] = (0,)
    backward: tuple[int, ...] = (0,)
    input_backward: tuple[int, ...] = (0,)
    weight_backward: tuple[int, ...] = (0,)


class CallBytes(NamedTuple):
    """Bytes of a call: of a layer at one position in the model, or of the loss."""

    weights: int
    accumulators: int  # Accumulators of its gradients.
    residuals: int  # Its own residuals for the backward pass, per micro-batch.
    weight_residuals: int  # Its own residuals for deferred weight gradients.
    recomputed: bool  # Whether it is recomputed if the schedule recomputes.
    used: Sequence[int]  # Numbers of the values that its forward pass takes.
    made: Sequence[int]  # Numbers of the values that it makes.
    residual_values: Sequence[int] = ()  # Values that are residuals too.
    weight_residual_values: Sequence[int] = ()  # Values that are weight residuals too.
    new_weight_residuals: int = 0  # Those `weight_residuals` that are not `residuals`.
    workspace: Workspace = Workspace()
    offloaded: bool = False  # Whether it is offloaded if the schedule offloads.


class SharedWeight(NamedTuple):
    """A weight that several calls use. It is on the device of the first call."""

    num_bytes: int
    calls: Sequence[int]  # Ascending; at least two.


# Indices of operations, by their kind and the stash that they write.
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
            (Kind.OFFLOAD, StashKind.OFFLOADED),
            (Kind.LOAD, None),
        ]
    )
}


class BytesByOperation(NamedTuple):
    """Bytes of a stage during each of `OPERATIONS`, in the order of `OPERATIONS`."""

    forward_for_recompute: int
    forward: int
    recompute: int
    backward: int
    input_backward: int
    weight_backward: int
    update: int = 0
    evaluation: int = 0
    offload: int = 0
    load: int = 0


class StashBytes(NamedTuple):
    """Bytes that a stage needs for a micro-batch, without weights and accumulators."""

    # Bytes in each `StashKind` while the device works on other micro-batches. For
    # OFFLOADED they are negative: the bytes that the device then does not hold.
    held: tuple[int, ...]
    during: BytesByOperation  # Stash and workspace, by operation.


def operation_index(moment: StashMoment) -> int:
    """Returns the index of the moment's operation in `StashBytes.during`."""
    return OPERATIONS[moment.op.kind, moment.use.write]
