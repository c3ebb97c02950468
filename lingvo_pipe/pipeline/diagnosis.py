"""Finds the operation that made a pipeline fail.

When an operation fails, TensorFlow cancels whatever the other devices wait for, and of
the errors that follow it often reports a cancelled one. So the step is run once more,
layer by layer, with nothing waiting for anything: then the error is the operation's
own, and the layer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StageCall, StashSlot, Values
from lingvo_pipe.pipeline.operation_errors import naming
from lingvo_pipe.pipeline.tracing.trace import Surroundings

# The slot in a stash of one.
_FIRST = 0

# Where no layer is to blame, but the machine: no memory, or a worker that is gone.
# Another run would not tell more, and might wait for long.
_OF_MACHINES = (
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)


def may_be_diagnosed(error: tf.errors.OpError) -> bool:
    """Whether running the step that raised it once more may tell which layer it was."""
    return not isinstance(error, _OF_MACHINES)


def diagnose(
    stages: Sequence[Stage],
    devices: Sequence[str],
    names: Sequence[str],
    arguments: NestedMap,
    trains: bool,
) -> None:
    """Runs the layers one by one, eagerly, forward and backward.

    Args:
        stages: in order.
        devices: of each stage.
        names: of each call, of all stages: a layer's path and stage.
        arguments: see `Emitter.emit`.
        trains: whether there is a backward.

    Raises:
        tf.errors.OpError: that of the operation that fails, naming the layer; nothing
            if none does.
    """
    steps = [
        _Step(device, call, name, weights)
        for device, call, name, weights in zip(
            [d for d, stage in zip(devices, stages, strict=True) for _ in stage.calls],
            [call for stage in stages for call in stage.calls],
            names,
            [own for of_stage in arguments.weights for own in of_stage],
            strict=True,
        )
    ]
    for m in range(len(arguments.first_examples)):
        num = arguments.num_examples
        told = Surroundings(
            step=arguments.step,
            first_example=arguments.first_examples[m],
            num_examples=None if num is None else num[m],
            loss_scale=arguments.loss_scale,
        )
        values = {i: x[m] for i, x in enumerate(arguments.batch)}
        stashes = [step.forward(told, values, m) for step in steps]
        gradients: Values = {}
        if trains:
            for step, stash in zip(reversed(steps), reversed(stashes), strict=True):
                step.backward(told, stash, gradients, m)


class _Step:
    """One layer."""

    def __init__(
        self, device: str, call: StageCall, name: str, weights: Sequence[tf.Tensor]
    ):
        self._device, self._call, self._name = device, call, name
        with tf.device(device):
            self._weights = call.functions.pack_weights(*weights)

    def forward(self, told: Surroundings, values: Values, micro_batch: int) -> Handles:
        with tf.device(self._device), self._naming("forward", micro_batch):
            sums = self._call.functions.zero_sums()
            slot = StashSlot(
                self._call.functions.empty_residuals(tf.constant(1)), _FIRST
            )
            return self._call.forward(self._weights, told, values, sums, slot)[1]

    def backward(
        self, told: Surroundings, stash: Handles, gradients: Values, micro_batch: int
    ) -> None:
        with tf.device(self._device), self._naming("backward", micro_batch):
            totals = self._call.functions.zero_gradients()
            slot = StashSlot(stash, _FIRST)
            self._call.backward(self._weights, told, slot, gradients, totals)

    def _naming(self, direction: str, micro_batch: int) -> AbstractContextManager:
        return naming(
            f"the {direction} pass of {self._name}, micro-batch {micro_batch}"
        )
