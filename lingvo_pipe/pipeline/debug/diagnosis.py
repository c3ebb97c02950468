"""Finds the operation that made a pipeline fail, or the first value that is not finite.

When an operation fails, TensorFlow cancels the operations that the other devices wait
for, and often reports only a cancelled one. So the step is rerun layer by layer, where
nothing waits: the error is then the operation's own, and the layer is known. The rerun
also finds the first values that are not finite.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.core.error_causes import likely_cause
from lingvo_pipe.core.error_text import frames_text, plain_message
from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.core.nests import map_present
from lingvo_pipe.pipeline.loops.run_data import LoopArguments
from lingvo_pipe.pipeline.loops.stage import Stage, StageInputs, stages_of_one
from lingvo_pipe.pipeline.loops.stash import Pack, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers, Values
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

_NODE = re.compile(r"\{\{node ([^}]*)\}\}")

# Errors of the machine, not of a layer: no memory, or a lost worker. A rerun would not
# show more, and might wait for a long time.
_MACHINE_ERRORS = (
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)


def may_be_diagnosed(error: tf.errors.OpError) -> bool:
    """Returns whether a rerun of the failed step may show which layer failed."""
    return not isinstance(error, _MACHINE_ERRORS)


def diagnose(
    stages: Sequence[Stage],
    devices: Sequence[str],
    traced: TracedLayers,
    arguments: LoopArguments,
    weights: Sequence[list[tf.Tensor]],
    trains: bool,
) -> None:
    """Runs the layers eagerly, one by one: forward, and then backward if `trains`.

    `stages` were made from `traced`. `devices` has one device for each stage. `weights`
    has one flat list for each layer and one for the loss.

    Raises:
        tf.errors.OpError: the error of the operation that fails, with the layer's path.
        FloatingPointError: if no operation fails but values are not finite.
    """
    run, not_finite = arguments.run, NotFinite()
    mini_batch = {"input": run.inputs, "target": run.targets}
    not_finite.inspect("the mini-batch", _by_path("", mini_batch))
    placed = [layer for stage in stages for layer in stage.layers]
    layer_devices = [
        device
        for stage, device in zip(stages, devices, strict=True)
        for _ in stage.layers
    ]
    layers = [
        _Layer(traced, i, stage, layer_devices[i], weights[i], not_finite)
        for i, stage in enumerate(stages_of_one(placed))
    ]
    for m in range(len(run.first_examples)):
        num = run.num_examples
        call_context = CallContext(
            step=run.step,
            first_example=run.first_examples[m],
            num_examples=None if num is None else num[m],
            loss_scale=arguments.loss_scale,
        )
        values = {i: x[m] for i, x in enumerate(run.batch)}
        stashes = [layer.forward(call_context, values, m) for layer in layers]
        gradients: Values = {}
        if trains:
            for layer, stash in zip(reversed(layers), reversed(stashes), strict=True):
                layer.backward(call_context, stash, gradients, m)
    not_finite.raise_found()


class NotFinite:
    """Collector of the first values that are not finite.

    If the first values are infinite, also collects the first NaN, because an infinite
    value may be intended, as in a mask.
    """

    def __init__(self) -> None:
        self._found: list[str] = []
        self._has_nan = False

    def inspect(self, owner: str, values: Iterable[tuple[str, tf.Tensor]]) -> None:
        """Records the first of an owner's tensors that is not finite.

        `values` are pairs (name, tensor), such as ("output hidden", x). An example of
        an owner is "model/dense, micro-batch 0,".
        """
        for name, x in values:
            if self._has_nan or not is_differentiable(x):
                continue
            sizes = tf.abs(x)  # For complex numbers too.
            masks = {"nan": tf.math.is_nan(sizes), "inf": tf.math.is_inf(sizes)}
            numbers = {
                kind: int(tf.math.count_nonzero(mask)) for kind, mask in masks.items()
            }
            if numbers["nan"] or (numbers["inf"] and not self._found):
                kinds = " or ".join(kind for kind, number in numbers.items() if number)
                count = f"{sum(numbers.values())} of {x.shape.num_elements()}"
                self._found.append(f"the {name} of {owner} has {kinds} in {count}")
            self._has_nan = numbers["nan"] > 0

    def raise_found(self) -> None:
        """Raises FloatingPointError about the values found, if there are any."""
        if self._found:
            raise UserNumberError(f"at first {', then '.join(self._found)}")


class _Layer:
    """One layer, or the loss, that runs by itself as a stage."""

    def __init__(
        self,
        traced: TracedLayers,
        index: int,
        stage: Stage,
        device: str,
        weights: Sequence[tf.Tensor],
        not_finite: NotFinite,
    ):
        self._trace, self._label = traced.traces[index], traced.labels[index]
        self._stage = stage
        (self._layer,) = stage.layers
        self._device, self._not_finite = device, not_finite
        is_layer = index < len(traced.layers)
        variables = traced.layers[index].vars if is_layer else {}
        self._weight_names = [f"weight {path}" for path, _ in trees.leaves(variables)]
        not_finite.inspect(self._label, zip(self._weight_names, weights, strict=True))
        with tf.device(device):
            self._weights = self._stage.pack_weights([weights])

    def forward(
        self, call_context: CallContext, values: Values, micro_batch: int
    ) -> Pack:
        """Adds the outputs to `values`, and returns the stash of residuals."""
        stage, numbers = self._stage, self._layer.values.made
        with self._running("forward", micro_batch) as label:
            empty = stage.empty_stash(StashKind.RESIDUALS, tf.constant(1))
            made_values, packed_sums, stash = stage.forward(
                self._inputs(call_context),
                values,
                stage.zero_sums(),
                StashSlot(empty, tf.constant(0)),
                wanted=numbers,
            )
            values.update(made_values)
            (flat,) = stage.unpack_sums(packed_sums)
        pairs = zip(self._trace.made, numbers, strict=True)
        tensors = {x.ref(): values[value] for x, value in pairs}
        outputs = map_present(
            lambda x: tensors.get(x.ref()), self._trace.result.outputs
        )
        sums = tf.nest.pack_sequence_as(self._trace.result.sums, flat)
        self._not_finite.inspect(label, _by_path("output", outputs))
        self._not_finite.inspect(label, _by_path("sum", sums))
        return stash

    def backward(
        self,
        call_context: CallContext,
        stash: Pack,
        gradients: Values,
        micro_batch: int,
    ) -> None:
        """Adds the gradients of the inputs to `gradients`."""
        stage, functions = self._stage, self._layer.functions
        with self._running("backward", micro_batch) as label:
            totals, _, packs = stage.backward(
                self._inputs(call_context),
                StashSlot(stash, tf.constant(0)),
                gradients,
                stage.zero_gradients(),
                wanted=self._layer.given_gradients,
            )
            gradients.update(totals)
            (accumulators,) = stage.gradients.unpack(packs)
            of_weights = functions.gradients.unpack(accumulators)
        pairs = zip(self._weight_names, functions.phases.has_gradient, strict=True)
        names = [f"gradient of {name}" for name, has_gradient in pairs if has_gradient]
        self._not_finite.inspect(label, zip(names, of_weights, strict=True))
        for i in functions.phases.gives:
            gradient = gradients[self._layer.values.args[i]]
            self._not_finite.inspect(label, [(f"gradient of input {i}", gradient)])

    def _inputs(self, call_context: CallContext) -> StageInputs:
        return StageInputs(self._weights, self._stage.pack_path_hashes(), call_context)

    @contextlib.contextmanager
    def _running(self, direction: str, micro_batch: int) -> Iterator[str]:
        """Adds the pass to errors in the block. Yields the layer and micro-batch."""
        label = f"{self._label}, micro-batch {micro_batch}"
        location = f"the {direction} pass of {label}"
        with tf.device(self._device), naming(location, self._trace.graph):
            yield f"{label},"


def _by_path(name: str, structure: Any) -> list[tuple[str, tf.Tensor]]:
    """Returns pairs ("name path", tensor) for the tensors of a structure."""
    return [
        (f"{name} {path}".strip(), x)
        for path, x in trees.leaves(structure)
        if x is not None
    ]


@contextlib.contextmanager
def naming(location: str, graph: Any = None) -> Iterator[None]:
    """Adds location, operation and likely cause to an error of TensorFlow in the block.

    With the operation's `graph`, the error also shows the user's lines that made it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        node = _NODE.search(error.message)
        name = f" (operation {node[1]})" if node else ""
        lines = _lines(graph, node[1]) if graph is not None and node else ""
        plain = plain_message(error.message)
        cause = likely_cause(type(error).__name__, plain)
        message = f"In {location}: {plain}{name}{lines}{cause}"
        raise type(error)(error.node_def, error.op, message) from error


def naming_reads(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches. Errors in reading a batch begin "In reading the input:"."""
    with naming("reading the input"):
        yield from batches


def _lines(graph: Any, node: str) -> str:
    """Returns the user's lines that made a node, or the operation that contains it."""
    operations = {operation.name: operation for operation in graph.get_operations()}
    names = list(itertools.accumulate(node.split("/"), "{}/{}".format))
    innermost = (operations[name] for name in reversed(names) if name in operations)
    operation = next(innermost, None)
    return "" if operation is None else frames_text(operation.traceback)
