"""What made a step fail: it is run once more, layer by layer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.diagnosis import may_be_diagnosed
from lingvo_pipe.training.train_state import TrainState


def diagnose_error(
    error: tf.errors.OpError, state: TrainState, batches: Sequence[NestedMap]
) -> None:
    """Raises an error that names the layer, if there is one.

    Args:
        error: of the operation that failed.
        state: what was trained.
        batches: of the steps, of which one failed.
    """
    if not may_be_diagnosed(error):
        return
    for n, batch in enumerate(batches):
        with contextlib.suppress(FloatingPointError):
            _diagnose(state, n, batch)


def not_finite_error(
    state: TrainState, n: int, loss: float, batch: NestedMap
) -> FloatingPointError:
    """The error of a step whose loss or a gradient is not finite.

    Args:
        state: what was trained.
        n: how many steps it came after those that are counted.
        loss: the step's.
        batch: likewise.
    """
    what = "a gradient is not" if math.isfinite(loss) else f"the loss is {loss}"
    found = ""
    try:
        _diagnose(state, n, batch)
    except FloatingPointError as error:
        found = f": {error}"
    return FloatingPointError(
        "The loss and its gradients must stay finite; in step "
        f"{int(state.global_step) + n + 1} {what}{found}."
    )


def _diagnose(state: TrainState, n: int, batch: NestedMap) -> None:
    with ForwardContext(step=state.global_step.read_value() + n):
        state.task.Diagnose(state.task.Values(), batch)
