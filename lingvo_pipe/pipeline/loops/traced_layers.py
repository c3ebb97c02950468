r"""Traces the layers of a model, and numbers the values between them.

mini-batch   0: image  1: label            (inputs, then targets)
layers       l0(0) -> 2    l1(2) -> 3      l2(3, 2) -> 4
loss         (4, 1) -> sums
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import as_args, map_present, pack_present, present, spec_of
from lingvo_pipe.layers.core import random_streams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.pipeline.loops.dataflow import LayerValues, needs_gradient
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.tracing.cut import REFERENCES
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import Compilation, Phases
from lingvo_pipe.pipeline.tracing.trace import CallContext, Trace, is_differentiable

# Values, or their gradients, by the values' numbers (see `dataflow`).
Values = dict[int, tf.Tensor]


class TracedLayers:
    """All layers of a model, traced, and the values between them.

    Attributes:
        traces: a trace for each layer, and then one for the loss, if any.
        labels: for each trace, the path and stage of its layer, for errors.
        values: for each trace, the numbers of its values.
        specs: the spec of each value, by number, for one micro-batch.
        inputs: numbers of the mini-batch's inputs and targets.
        outputs: the last layer's outputs, as a structure of numbers and None.
        needed: numbers of the values whose gradients are needed.
    """

    def __init__(
        self,
        layers: Sequence[BaseLayer],
        thetas: Sequence[Any],
        call_context: CallContext,
        inputs: Any,
        targets: Any,
        functions: LayerFunctions,
        input_gradients: bool,
    ):
        """Traces the layers, and the loss if there is one.

        `inputs` are specs of the first layer's positional inputs for a micro-batch.
        Their gradients are needed if `input_gradients`. `targets` are specs of the
        loss's targets.

        Raises:
            ValueError: if a layer or the loss breaks a rule, or a layer returns None.
        """
        self.layers = list(layers)
        self.traces: list[Trace] = []
        self.labels = [functions.label(layer) for layer in layers]
        self.values: list[LayerValues] = []
        self.specs: dict[int, tf.TensorSpec] = {}
        self.outputs: Any = None
        values = self._number(inputs)
        num_inputs = len(self.specs)
        target_values = self._number(targets)
        self.inputs = list(self.specs)
        for layer, theta in zip(layers, thetas, strict=True):
            layer_inputs = values
            if functions.takes_targets(layer):
                layer_inputs = (*values, target_values)
            args = self._specs_of(layer_inputs)
            is_last = layer is layers[-1]
            trace = functions.trace(layer, theta, call_context, args, is_last)
            self.outputs = self._add(trace, layer_inputs)
            if self.outputs is None:
                raise UserValueError(
                    path=functions.location(layer),
                    expected="a tensor or a structure of tensors for the next layer",
                    got=None,
                    hint="Does FProp end without a `return`?",
                )
            values = as_args(self.outputs)
        if functions.loss_fn is not None:
            trace = functions.trace_loss(
                layers[-1],
                call_context._replace(path_hash=None, loss_scale=None),
                self._specs_of(self.outputs),
                self._specs_of(target_values),
            )
            self._add(trace, (self.outputs, target_values))
            self.labels.append(functions.loss_label(layers[-1]))
        is_trained = [
            any(g is not None for g in trace.weight_gradients) for trace in self.traces
        ]
        needed = range(num_inputs) if input_gradients else ()
        self.needed = needs_gradient(zip(self.values, is_trained, strict=True), needed)

    @property
    def draws(self) -> bool:
        """True if a layer draws random numbers."""
        return any(trace.draws for trace in self.traces)

    def placed_layers(self, compilations: Sequence[Compilation]) -> list[PlacedLayer]:
        """Returns the layers and the loss, each with its item of `compilations`.

        Raises:
            ValueError: if XLA cannot compile a layer's passes.
        """
        functions: dict[Any, PackedPhases] = {}
        placed = []
        hashes = [random_streams.path_hash(layer.path) for layer in self.layers]
        has_loss = len(self.traces) > len(hashes)
        path_hashes = [*hashes, None] if has_loss else hashes
        for trace, values, compilation, path_hash, label in zip(
            self.traces,
            self.values,
            compilations,
            path_hashes,
            self.labels,
            strict=True,
        ):
            needed = tuple(value in self.needed for value in values.args)
            key = id(trace), needed, compilation
            if key not in functions:
                phases = Phases(trace, needed, compilation)
                _check_compiled(phases, label)
                functions[key] = PackedPhases(phases)
            values = values._replace(gives=values.gives & self.needed)
            placed.append(PlacedLayer(functions[key], values, path_hash))
        return placed

    def _number(self, specs: Any) -> Any:
        """Numbers new values. Returns the numbers in the structure of `specs`."""
        first = len(self.specs)
        flat = present(specs)
        self.specs.update(enumerate(flat, first))
        return pack_present(specs, range(first, first + len(flat)))

    def _specs_of(self, values: Any) -> Any:
        return map_present(lambda value: self.specs[value], values)

    def _add(self, trace: Trace, args: Any) -> Any:
        """Adds a trace. Returns the numbers of the outputs, nested like the outputs."""
        values = present(args)
        output_values = self._number(list(map(spec_of, trace.made)))
        tensors = [x.ref() for x in (*trace.args, *trace.made)]
        value_of_tensor = dict(zip(tensors, [*values, *output_values], strict=True))
        gives = [gradient is not None for gradient in trace.input_gradients]
        self.traces.append(trace)
        self.values.append(
            LayerValues(
                args=tuple(values),
                uses=frozenset(itertools.compress(values, trace.uses)),
                made=tuple(output_values),
                gives=frozenset(itertools.compress(values, gives)),
                wants=frozenset(itertools.compress(output_values, trace.wants)),
            )
        )
        return map_present(lambda x: value_of_tensor[x.ref()], trace.result.outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedLayer:
    """A layer, or the loss, at its position in the model."""

    functions: PackedPhases  # The layer's functions, which identical layers share.
    values: LayerValues  # The numbers of its values.
    path_hash: int | None  # Hash of the layer's path; None for the loss.

    @property
    def used(self) -> list[int]:
        """The numbers of the values that the forward pass takes."""
        return [self.values.args[i] for i in self.functions.phases.used]

    @property
    def given_gradients(self) -> list[int]:
        """The numbers of the values whose gradients the backward pass returns."""
        return [self.values.args[i] for i in self.functions.phases.gives]

    def output_gradients(self, gradients: Values) -> list[tf.Tensor]:
        """Returns the output gradients that the backward pass takes, 0 if missing."""
        outputs = zip(self.values.made, self.functions.phases.made, strict=True)
        return [
            gradient_or_zeros(gradients, value, spec)
            for value, spec in outputs
            if is_differentiable(spec)
        ]

    def add_input_gradients(
        self, gradients: Values, input_gradients: list[tf.Tensor]
    ) -> None:
        """Adds `input_gradients`, the backward pass's results, to `gradients`."""
        for value, gradient in zip(self.given_gradients, input_gradients, strict=True):
            before = gradients.get(value)
            gradients[value] = gradient if before is None else before + gradient


def _check_compiled(phases: Phases, label: str) -> None:
    residuals = [*phases.residuals, *phases.weight_residuals]
    if phases.compilation.by_xla and any(x.dtype in REFERENCES for x in residuals):
        raise UserValueError(
            path=label,
            expected="a layer that XLA can compile, with its gradients apart",
            got=Words("a list of tensors for the backward pass, as of a tf.while_loop"),
            hint="Unroll the loop, call it in tf.recompute_grad, or set jit_compile to "
            "False.",
        )


def gradient_or_zeros(gradients: Values, value: int, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a value's gradient, or zeros if there is none."""
    return gradients[value] if value in gradients else tf.zeros(spec.shape, spec.dtype)


def viewed_values(layers: Iterable[PlacedLayer]) -> dict[int, int]:
    """Returns, for each value that is a view, the value whose buffer it has."""
    viewed: dict[int, int] = {}
    for layer in layers:
        views = zip(layer.values.made, layer.functions.phases.view_of, strict=True)
        for value, arg in views:
            if arg is not None:
                source = layer.values.args[arg]
                viewed[value] = viewed.get(source, source)
    return viewed
