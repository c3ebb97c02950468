"""Finds the operation that made a pipeline fail, or its loss no number.

When an operation fails, TensorFlow cancels whatever the other devices wait for, and of
the errors that follow it often reports a cancelled one. So the step is run once more,
layer by layer, with nothing waiting for anything: then the error is the operation's
own, and the layer is known. Likewise the first values that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from lingvo_pipe import tree
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_call import StageCall, StashSlot, Values
from lingvo_pipe.pipeline.not_finite import NotFinite
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
    assembly: Assembly,
    arguments: NestedMap,
    trains: bool,
) -> None:
    """Runs the layers one by one, eagerly, forward and backward.

    Args:
        stages: in order.
        devices: of each stage.
        assembly: what the stages were made of.
        arguments: see `Emitter.emit`.
        trains: whether there is a backward.

    Raises:
        tf.errors.OpError: that of the operation that fails, naming the layer.
        FloatingPointError: if none fails, naming the layer that made the first values
            that are not finite; nothing if all are.
    """
    found = NotFinite()
    given = {"input": arguments.inputs, "target": arguments.targets}
    found.look_at("the mini-batch", _by_path("", given))
    calls = [call for stage in stages for call in stage.calls]
    homes = [d for d, stage in zip(devices, stages, strict=True) for _ in stage.calls]
    weights = [own for of_stage in arguments.weights for own in of_stage]
    steps = [
        _Step(assembly, i, call, device, own, found)
        for i, (call, device, own) in enumerate(zip(calls, homes, weights, strict=True))
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
    found.raise_found()


class _Step:
    """One layer, or the loss."""

    def __init__(
        self,
        assembly: Assembly,
        index: int,
        call: StageCall,
        device: str,
        weights: Sequence[tf.Tensor],
        found: NotFinite,
    ):
        """Initialises the step.

        Args:
            assembly: whose call it is.
            index: of the call.
            call: the call.
            device: where it runs.
            weights: of the layer.
            found: is shown what it makes.
        """
        self._trace, self._place = assembly.traces[index], assembly.places[index]
        self._call, self._device, self._found = call, device, found
        is_layer = index < len(assembly.layers)
        own = assembly.layers[index].vars if is_layer else {}
        self._weight_names = [f"weight {path}" for path, _ in tree.leaves(own)]
        found.look_at(self._place, zip(self._weight_names, weights, strict=True))
        with tf.device(device):
            self._weights = call.functions.pack_weights(*weights)

    def forward(self, told: Surroundings, values: Values, micro_batch: int) -> Handles:
        functions = self._call.functions
        with tf.device(self._device), self._naming("forward", micro_batch):
            slot = StashSlot(functions.empty_residuals(tf.constant(1)), _FIRST)
            sums = functions.zero_sums()
            sums, stash = self._call.forward(self._weights, told, values, sums, slot)
            flat = functions.unpack_sums(*sums)
        made = {
            x.ref(): values[value]
            for x, value in zip(self._trace.made, self._call.call.made, strict=True)
        }
        outputs = map_present(lambda x: made.get(x.ref()), self._trace.result.outputs)
        self._look_at(micro_batch, _by_path("output", outputs))
        totals = tf.nest.pack_sequence_as(self._trace.result.sums, flat)
        self._look_at(micro_batch, _by_path("sum", totals))
        return stash

    def backward(
        self, told: Surroundings, stash: Handles, gradients: Values, micro_batch: int
    ) -> None:
        call, functions = self._call, self._call.functions
        with tf.device(self._device), self._naming("backward", micro_batch):
            totals = functions.zero_gradients()
            slot = StashSlot(stash, _FIRST)
            _, totals = call.backward(self._weights, told, slot, gradients, totals)
            of_weights = functions.unpack_gradients(*totals)
        has = zip(self._weight_names, functions.phases.has_gradient, strict=True)
        names = [f"gradient of {name}" for name, yes in has if yes]
        self._look_at(micro_batch, zip(names, of_weights, strict=True))
        args = call.call.args
        of_inputs = [
            (f"gradient of input {i}", gradients[args[i]])
            for i in functions.phases.gives
        ]
        self._look_at(micro_batch, of_inputs)

    def _look_at(
        self, micro_batch: int, values: Iterable[tuple[str, tf.Tensor]]
    ) -> None:
        self._found.look_at(f"{self._place}, micro-batch {micro_batch},", values)

    def _naming(self, direction: str, micro_batch: int) -> AbstractContextManager:
        where = f"the {direction} pass of {self._place}, micro-batch {micro_batch}"
        return naming(where, self._trace.graph)


def _by_path(what: str, structure: Any) -> list[tuple[str, tf.Tensor]]:
    """A structure's tensors, with each what it is and its place in the structure."""
    return [
        (f"{what} {path}".strip(), x)
        for path, x in tree.leaves(structure)
        if x is not None
    ]
