"""The layers before a pipeline: on the first device, on the whole mini-batch.

They run once, outside the loops. A training step keeps what their backward needs until
the pipeline has made the gradients of its inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.optional_nest import map_present, present, spec_of
from lingvo_pipe.pipeline.before_function import BeforeFunction, Forward, Given
from lingvo_pipe.pipeline.built_once import BuiltOnce
from lingvo_pipe.pipeline.outer_gradient import with_gradient
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.tracing.trace import (
    Surroundings,
    differentiable,
    is_differentiable,
)


class BeforeRun(NamedTuple):
    """One run of the layers.

    Attributes:
        outputs: positional inputs of the first cell, as a tape around sees them.
        accumulated: dict of totals by the accumulators' paths.
        num_bytes: see `BeforeFunction`.
        kept: what made them, and what that left; None if there are no layers.
    """

    outputs: tuple
    accumulated: dict[str, tf.Tensor]
    num_bytes: int = 0
    kept: tuple[BeforeFunction, Forward] | None = None

    def gradients(self, output_gradients: Any) -> list[Any]:
        """The gradients of each layer's weights; None for what is not trained.

        Args:
            output_gradients: in the structure of the outputs; None where there is none.
        """
        if self.kept is None:
            return []
        function, forward = self.kept
        return function.backward(forward, output_gradients)[0]


class Before:
    """Runs the layers before one pipeline, tracing what has not been traced before."""

    def __init__(self, layers: Sequence[BaseLayer], cells: Plan):
        """Initialises the layers.

        Args:
            layers: in order; there may be none.
            cells: what the pipeline is built from.
        """
        self._plan = dataclasses.replace(
            cells,
            layers=layers,
            ends=[len(layers)],
            replicas=[cells.devices[:1]],
            recomputed=[False] * len(layers),
            jit_compile=cells.jit_compile[:1],
        )
        self._functions: BuiltOnce[BeforeFunction] = BuiltOnce(
            f"What runs before {cells.name}", "Give batches of few shapes."
        )

    def run(self, thetas: Sequence[Any], args: tuple, trains: bool) -> BeforeRun:
        """Runs the layers forward.

        A tape around that asks for a gradient has them run once more.

        Args:
            thetas: of each layer its weights.
            args: positional inputs of the first; tensors and None.
            trains: whether `gradients` of the run will be asked for.
        """
        if not self._plan.layers:
            return BeforeRun(args, {})
        context = forward_context.current()
        plan = dataclasses.replace(self._plan, do_eval=context.do_eval, trains=trains)
        # As a tape sees them.
        thetas = tf.nest.map_structure(tf.convert_to_tensor, list(thetas))
        with tf.device(plan.devices[0]):
            # Each place has tensors of its own, even if they hold one variable.
            own, inputs = map_present(tf.stop_gradient, (thetas, args))
            given = Given(own, _told(context), inputs)
        function = self._function(plan, given)
        forward = function.forward(given)
        outputs = self._seen_by_tapes(plan, given, forward.outputs, (thetas, args))
        kept = function, forward
        return BeforeRun(outputs, forward.accumulated, function.num_bytes, kept)

    def _function(self, plan: Plan, given: Given) -> BeforeFunction:
        """The function for such a run, which is built if need be."""
        specs = map_present(spec_of, given)
        key = plan.do_eval, plan.trains, plan.input_gradients, repr(specs)
        return self._functions.get(key, lambda: BeforeFunction(plan, specs))

    def _seen_by_tapes(
        self, plan: Plan, given: Given, outputs: tuple, sources: tuple[Any, tuple]
    ) -> tuple:
        """The outputs with gradients to the sources, weights and inputs."""
        thetas, args = sources
        plan = dataclasses.replace(plan, trains=True, input_gradients=True)

        def gradients(output_gradients: list[tf.Tensor]) -> list[list[Any]]:
            remaining = iter(output_gradients)
            seeds = map_present(
                lambda x: next(remaining) if is_differentiable(x) else None, outputs
            )
            function = self._function(plan, given)
            of_weights, of_args = function.backward(function.forward(given), seeds)
            pairs = zip(present(args), of_args, strict=True)
            real = [gradient for x, gradient in pairs if is_differentiable(x)]
            return [tf.nest.flatten(of_weights), real]

        device = plan.devices[0]
        tied = [(device, present(thetas)), (device, differentiable(args))]
        return with_gradient(outputs, device, tied, gradients)


def _told(context: ForwardContext) -> Surroundings:
    first = 0 if context.first_example is None else context.first_example
    return Surroundings(
        step=None if context.step is None else tf.convert_to_tensor(context.step),
        first_example=tf.cast(first, tf.int64),
    )
