r"""The phases that a traced forward pass is cut into.

    forward          : inputs                 ->  outputs, sums, residuals
    backward         : residuals, doutputs    ->  dinputs, dweights

or, where a schedule puts off the gradients of weights,

    input_backward   : residuals, doutputs    ->  dinputs, weight residuals
    weight_backward  : weight residuals       ->  dweights

All are given weights and surroundings first. All lists are flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.optional_nest import present, spec_of
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.tracing.cut import CutGraph
from lingvo_pipe.pipeline.tracing.trace import Trace

Function = Callable[..., list[tf.Tensor]]


class Compilation(NamedTuple):
    """How phases are compiled.

    Attributes:
        by_xla: whether XLA compiles them.
        device: full name of where they run, if that is not where they are called.
    """

    by_xla: bool
    device: str | None


def compilation(by_xla: bool, device: str) -> Compilation:
    """That of a stage on `device`, such that stages share functions if they can."""
    return Compilation(by_xla, None if loop_device(device) == device else device)


class Phases:
    """A trace, cut for the input gradients that are wanted.

    Attributes:
        used: places of the inputs that the forward pass is given.
        gives: places of the inputs whose gradients the backward pass returns.
        has_gradient: for each weight whether the backward pass has a gradient of it.
        weights, made, sums, residuals, weight_residuals: specs.
        surroundings: specs of those that are known.
        output_gradients: specs of those that the backward pass is given.
        input_gradients: specs of those that it returns.
    """

    def __init__(self, trace: Trace, wanted: Sequence[bool], compilation: Compilation):
        """Cuts the trace.

        Args:
            trace: what is cut.
            wanted: for each of the flat inputs whether its gradient is.
            compilation: of each function.
        """
        self._trace = trace
        self._compilation = compilation
        self._sums = tf.nest.flatten(trace.result.sums)
        self.gives = [
            i
            for i, (gradient, yes) in enumerate(
                zip(trace.input_gradients, wanted, strict=True)
            )
            if yes and gradient is not None
        ]
        self._dinputs = [trace.input_gradients[i] for i in self.gives]
        self._dweights = present(trace.weight_gradients)
        self._doutputs = present(trace.output_gradients)
        forward = [*trace.made, *self._sums, *trace.must_run]
        given = [*trace.weights, *trace.surroundings]
        whole = [forward, self._dinputs + self._dweights]
        split = [forward, self._dinputs, self._dweights]
        self._whole = CutGraph(trace.graph, given, trace.weights, whole)
        self._split = CutGraph(trace.graph, given, trace.weights, split)
        seeds = {x.ref() for x in self._doutputs}
        self._residuals = [x for x in self._whole.needed(1) if x.ref() not in seeds]
        self._weight_residuals = self._split.needed(2)

        self.used = [i for i, yes in enumerate(trace.uses) if yes]
        self.has_gradient = [g is not None for g in trace.weight_gradients]
        self.weights = list(map(spec_of, trace.weights))
        self.surroundings = list(map(spec_of, trace.surroundings))
        self.args = [spec_of(trace.args[i]) for i in self.used]
        self.made = list(map(spec_of, trace.made))
        self.sums = list(map(spec_of, self._sums))
        self.residuals = list(map(spec_of, self._residuals))
        self.weight_residuals = list(map(spec_of, self._weight_residuals))
        self.output_gradients = list(map(spec_of, self._doutputs))
        self.input_gradients = list(map(spec_of, self._dinputs))

    def forward(self, keeps: bool) -> Function:
        """`(weights, surroundings, used args) -> made outputs, sums, residuals`."""
        args = [self._trace.args[i] for i in self.used]
        kept = self._residuals if keeps else []
        return self._function(
            self._whole, 0, args, [*self._trace.made, *self._sums, *kept]
        )

    def backward(self) -> Function:
        """`(weights, surroundings, residuals, doutputs) -> dinputs, dweights`.

        XLA rounds what it compiles as one otherwise than the same in two. So that all
        schedules end in the same bytes, it compiles the two alone.
        """
        if self._compilation.by_xla and self._dweights:
            return self._backward_in_two()
        given = [*self._residuals, *self._doutputs]
        return self._function(self._whole, 1, given, self._dinputs + self._dweights)

    def _backward_in_two(self) -> Function:
        inputs_first, weights_then = self.input_backward(), self.weight_backward()
        num_told = len(self.weights) + len(self.surroundings)

        def run(*flat: tf.Tensor) -> list[tf.Tensor]:
            made = inputs_first(*flat)
            dinputs, kept = made[: len(self.gives)], made[len(self.gives) :]
            return [*dinputs, *weights_then(*flat[:num_told], *kept)]

        return run

    def input_backward(self) -> Function:
        """`(weights, surroundings, residuals, doutputs) -> dinputs, residuals`."""
        given = [*self._residuals, *self._doutputs]
        kept = self._weight_residuals
        return self._function(self._split, 1, given, self._dinputs + kept)

    def weight_backward(self) -> Function:
        """`(weights, surroundings, weight residuals) -> dweights`."""
        return self._function(self._split, 2, self._weight_residuals, self._dweights)

    def _function(
        self,
        cut: CutGraph,
        phase: int,
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[Any],
    ) -> Function:
        trace = self._trace
        given = [*trace.weights, *trace.surroundings, *inputs]
        run = cut.function(phase, given, outputs)
        by_xla, device = self._compilation
        if not by_xla:
            return run
        compiled = tf.function(
            lambda *flat: run(*flat), autograph=False, jit_compile=True
        )

        def call(*flat: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(device):
                return compiled(*flat)

        return call
