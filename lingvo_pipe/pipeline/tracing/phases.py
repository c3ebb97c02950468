r"""The phases of a traced forward pass.

    forward          : inputs                 ->  outputs, sums, residuals
    backward         : residuals, doutputs    ->  dinputs, dweights

or, in a schedule that delays the weight gradients,

    input_backward   : residuals, doutputs    ->  dinputs, weight residuals
    weight_backward  : weight residuals       ->  dweights

The first arguments of each phase are the weights and the call context. All lists are
flat. If the layer uses a weight only in a narrower dtype, the argument has that dtype:
the caller casts it once a step, not in each phase of each micro-batch.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import present, spec_of
from lingvo_pipe.layers.core.graph_flops import calls_functions, multiply_adds
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.tracing.cut import CutGraph
from lingvo_pipe.pipeline.tracing.trace import Trace
from lingvo_pipe.pipeline.tracing.views import buffers_of

Function = Callable[..., list[tf.Tensor]]


class Part(NamedTuple):
    """The operations of a phase in the traced graph, in their order."""

    operations: Sequence[tf.Operation]
    results: Sequence[tf.Tensor]


class Compilation(NamedTuple):
    """A way to run the phases of a layer: by XLA or not, and on which device."""

    by_xla: bool  # Whether XLA compiles the phases.
    # Full name of the device that runs the phases; None for the caller's device.
    device: str | None
    on_cpu: bool = True  # Whether the caller's device is a CPU.


def compilation(by_xla: bool, device: str) -> Compilation:
    """Returns the Compilation of the phases of a stage on `device`."""
    caller = loop_device(device)
    on_cpu = device_name(caller).kind == "CPU"
    return Compilation(by_xla, None if caller == device else device, on_cpu)


class Phases:
    """The phases of a trace, with only the input gradients that are needed.

    Attributes:
        used: positions of the inputs that the forward pass takes.
        gives: positions of the inputs whose gradients the backward pass returns.
        has_gradient: for each weight, whether the backward pass returns its gradient.
        weights, made, sums, residuals, weight_residuals: specs.
        cast_weights: specs of the weights as arguments of the phases.
        casts: the `cast_weights` whose dtypes are not the weights' own.
        call_context: specs of the known fields of a `CallContext`.
        output_gradients: specs of the output gradients that the backward pass takes.
        residual_buffers, weight_residual_buffers: the buffers of the residuals.
        view_of: for each of `made`, the position of the input that it is a view of.
    """

    def __init__(self, trace: Trace, needed: Sequence[bool], compilation: Compilation):
        """Cuts the trace. `needed` says for each input if its gradient is needed."""
        self._trace = trace
        self.compilation = compilation
        self._sums = tf.nest.flatten(trace.result.sums)
        pairs = enumerate(zip(trace.input_gradients, needed, strict=True))
        self.gives = [i for i, (g, yes) in pairs if yes and g is not None]
        self._dinputs = [trace.input_gradients[i] for i in self.gives]
        self._dweights = present(trace.weight_gradients)
        self._doutputs = present(trace.output_gradients)
        forward = [*trace.made, *self._sums, *trace.must_run]
        computed = [*trace.made, *self._sums, *self._dinputs, *self._dweights]
        results = {x.ref() for x in computed}
        self._weights = [
            w if w.ref() in results else _as_used(w) for w in trace.weights
        ]
        common_inputs = [*self._weights, *trace.call_context]
        last = [*self._dweights, *trace.must_run_backward]
        whole_targets = [forward, [*self._dinputs, *last]]
        split_targets = [forward, self._dinputs, last]
        self._whole = CutGraph(trace.graph, common_inputs, self._weights, whole_targets)
        self._split = CutGraph(trace.graph, common_inputs, self._weights, split_targets)
        seeds = {x.ref() for x in self._doutputs}
        self._residuals = [x for x in self._whole.needed(1) if x.ref() not in seeds]
        self._weight_residuals = self._split.needed(2)

        self.used = [i for i, yes in enumerate(trace.uses) if yes]
        self.has_gradient = [g is not None for g in trace.weight_gradients]
        self.weights = list(map(spec_of, trace.weights))
        self.cast_weights = list(map(spec_of, self._weights))
        self.casts = [
            cast
            for cast, w in zip(self.cast_weights, self.weights, strict=True)
            if cast.dtype != w.dtype
        ]
        self.call_context = list(map(spec_of, trace.call_context))
        self.made = list(map(spec_of, trace.made))
        self.sums = list(map(spec_of, self._sums))
        self.residuals = list(map(spec_of, self._residuals))
        self.weight_residuals = list(map(spec_of, self._weight_residuals))
        self.output_gradients = list(map(spec_of, self._doutputs))
        self.residual_buffers = buffers_of(self._residuals, trace.args, trace.made)
        self.weight_residual_buffers = buffers_of(
            self._weight_residuals, trace.args, trace.made
        )
        self.view_of = [
            next(iter(buffers_of([x], trace.args, trace.made).args), None)
            for x in trace.made
        ]

    @functools.cached_property
    def weight_share(self) -> float:
        """The share of the backward pass's multiply-adds that `weight_backward` does.

        If there are no multiply-adds, each half with results counts the same.
        """
        first, second = (_products(self._split.operations(i)) for i in (1, 2))
        if not first + second:
            first, second = bool(self._dinputs), bool(self._dweights)
        return second / max(first + second, 1)

    @functools.cached_property
    def output_share(self) -> float:
        """The fraction of the forward pass's multiply-adds that no residual needs.

        The fraction is 0 if XLA compiles the pass as a whole, or if the pass calls
        functions, because multiply-adds in functions are not counted.
        """
        operations = self._whole.operations(0)
        total = _products(operations)
        if self.compilation.by_xla or calls_functions(operations) or not total:
            return 0.0
        results = [*self._residuals, *self._trace.must_run]
        return 1 - _products(self._whole.operations_for(0, results)) / total

    @property
    def parts(self) -> tuple[Part, Part, Part, Part]:
        """The `forward` with residuals, and the three backward phases, uncompiled."""
        dinputs, dweights = self._dinputs, self._dweights
        return (
            self._part(self._whole, 0, self._forward_results(stashes=True)),
            self._part(self._whole, 1, dinputs + dweights),
            self._part(self._split, 1, dinputs + self._weight_residuals),
            self._part(self._split, 2, dweights),
        )

    def _part(self, cut: CutGraph, phase: int, results: list[tf.Tensor]) -> Part:
        needed = cut.complete(phase, results)
        operations = self._trace.graph.get_operations()
        return Part([op for op in operations if op in needed], results)

    def _forward_results(self, stashes: bool) -> list[tf.Tensor]:
        return [*self._trace.made, *self._sums, *(self._residuals if stashes else [])]

    def forward(self, stashes: bool) -> Function:
        """Returns the forward pass as a function.

        `(weights, context, used args) -> made, sums, residuals`. The residuals are left
        out unless `stashes`. Without them XLA would round the outputs differently, so a
        compiled pass always computes them.
        """
        args = [self._trace.args[i] for i in self.used]
        computes_all = stashes or self.compilation.by_xla
        results = self._forward_results(computes_all)
        run = self._function(self._whole, 0, args, results)
        if computes_all == stashes:
            return run
        num_results = len(self.made) + len(self.sums)
        return lambda *flat: run(*flat)[:num_results]

    def backward(self) -> Function:
        """Returns `(weights, context, residuals, doutputs) -> dinputs, dweights`.

        If XLA compiled both halves as one function, it would round differently. So XLA
        compiles each half alone, and results are the same in all schedules.
        """
        if not (self.compilation.by_xla and self._dweights):
            inputs = [*self._residuals, *self._doutputs]
            return self._function(
                self._whole, 1, inputs, self._dinputs + self._dweights
            )
        input_backward, weight_backward = self.input_backward(), self.weight_backward()
        num_common = len(self.weights) + len(self.call_context)

        def run(*flat: tf.Tensor) -> list[tf.Tensor]:
            results = input_backward(*flat)
            dinputs, residuals = results[: len(self.gives)], results[len(self.gives) :]
            return [*dinputs, *weight_backward(*flat[:num_common], *residuals)]

        return run

    def input_backward(self) -> Function:
        """Returns the half of `backward` that returns `dinputs, weight residuals`."""
        inputs = [*self._residuals, *self._doutputs]
        results = self._dinputs + self._weight_residuals
        return self._function(self._split, 1, inputs, results)

    def weight_backward(self) -> Function:
        """Returns the function `(weights, context, weight residuals) -> dweights`."""
        return self._function(self._split, 2, self._weight_residuals, self._dweights)

    def _function(
        self, cut: CutGraph, phase: int, inputs: list[Any], outputs: list[Any]
    ) -> Function:
        arguments = [*self._weights, *self._trace.call_context, *inputs]
        run = cut.function(phase, arguments, outputs)
        by_xla, device, _ = self.compilation
        if not by_xla:
            return run
        compiled = tf.function(
            lambda *flat: run(*flat), autograph=False, jit_compile=True
        )

        def call(*flat: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(device):
                return compiled(*flat)

        return call


def _as_used(weight: tf.Tensor) -> tf.Tensor:
    """Returns a weight, or its only use if that is a cast to a narrower dtype."""
    uses = weight.consumers()
    if len(uses) == 1 and uses[0].type == "Cast":
        (cast,) = uses[0].outputs
        if cast.dtype.size < weight.dtype.size:
            return cast
    return weight


def _products(operations: Iterable[tf.Operation]) -> int:
    return multiply_adds(operations, in_functions=False)
