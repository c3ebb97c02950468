"""Bytes of a model's layers and of the weights that they share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
