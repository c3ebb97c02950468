"""Prologue: the layers of `before_tpl`, on the first device, on the whole mini-batch.

These layers run once, outside the loops. They are traced like cells, as one micro-batch
of all examples, so the rules of cells apply to them. A training step stashes what the
layers' backward pass needs, until the pipeline has computed the gradients of its own
inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_args, map_present, present, spec_of
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.pipeline.debug.diagnosis import naming
from lingvo_pipe.pipeline.debug.lost_checks import warn_of_lost_checks
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.build_cache import BuildCache
from lingvo_pipe.pipeline.execution.custom_gradient import with_gradient
from lingvo_pipe.pipeline.execution.gradients_and_metrics import (
    layer_gradients,
    sums_of,
)
from lingvo_pipe.pipeline.execution.micro_batches import check_static
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec
from lingvo_pipe.pipeline.loops.stage import StageInputs, stages_of_one
from lingvo_pipe.pipeline.loops.stash import Pack, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import Values
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import (
    CallContext,
    Trace,
    differentiable,
    is_differentiable,
)


class PrologueRun(NamedTuple):
    """The results of one run of the prologue."""

    outputs: tuple  # Positional inputs of the first cell, differentiable by tapes.
    accumulated: dict[str, tf.Tensor]  # Sums by the accumulators' paths.
    num_bytes: int = 0  # See `PrologueFunction`.
    # The function and its outputs; None if there are no layers.
    stashed: tuple[PrologueFunction, PrologueOutputs] | None = None

    @property
    def draws(self) -> bool:
        """True if a layer draws random numbers."""
        return self.stashed is not None and self.stashed[0].draws

    def gradients(self, output_gradients: Any) -> list[Any]:
        """Returns the gradients of the layers' weights. Untrained weights have None."""
        if self.stashed is None:
            return []
        function, forward = self.stashed
        return function.backward(forward, output_gradients)[0]


class Prologue:
    """The layers that run before a pipeline, on whole mini-batches."""

    def __init__(self, layers: Sequence[BaseLayer], cells: PipelineSpec):
        """Initializes the prologue. `cells` is the specification of the pipeline."""
        self._spec = prologue_spec(layers, cells)
        self._functions: BuildCache[PrologueFunction] = BuildCache(
            f"The prologue of {cells.name}, its before_tpl,",
            "Give batches of few shapes.",
        )

    def run(self, thetas: Sequence[Any], args: tuple, trains: bool) -> PrologueRun:
        """Runs the layers forward, and again if an outer tape asks for a gradient.

        `args` are tensors and None. `trains` says whether the caller will ask for the
        run's `gradients`.
        """
        if not self._spec.layers:
            return PrologueRun(args, {})
        context = forward_context.current_context()
        spec = dataclasses.replace(self._spec, do_eval=context.do_eval, trains=trains)
        # Outer tapes watch these tensors.
        thetas = tf.nest.map_structure(tf.convert_to_tensor, list(thetas))
        step, first = context.step, context.first_example
        with tf.device(spec.layout.devices[0]):
            # Each path has tensors of its own, even if paths share a variable.
            stopped_thetas, inputs = map_present(tf.stop_gradient, (thetas, args))
            call_context = CallContext(
                step=None if step is None else tf.convert_to_tensor(step),
                first_example=tf.cast(0 if first is None else first, tf.int64),
            )
            run_inputs = PrologueInputs(stopped_thetas, call_context, inputs)
        function = self._function(spec, run_inputs)
        forward = function.forward(run_inputs)
        device, tensors = (
            spec.layout.devices[0],
            (present(thetas), differentiable(args)),
        )
        outputs = with_gradient(
            forward.outputs,
            device,
            [(device, flat) for flat in tensors],
            functools.partial(self._gradients, spec, run_inputs, forward.outputs),
        )
        return PrologueRun(
            outputs, forward.accumulated, function.num_bytes, (function, forward)
        )

    def _function(self, spec: PipelineSpec, inputs: PrologueInputs) -> PrologueFunction:
        specs = map_present(spec_of, inputs)
        key = spec.do_eval, spec.trains, spec.input_gradients, repr(specs)
        return self._functions.get(key, PrologueFunction, spec, specs)

    def _gradients(
        self,
        spec: PipelineSpec,
        inputs: PrologueInputs,
        outputs: tuple,
        output_gradients: list[tf.Tensor],
    ) -> list[list[Any]]:
        """Returns the gradients of thetas and args, after another forward pass."""
        remaining = iter(output_gradients)
        seeds = map_present(
            lambda x: next(remaining) if is_differentiable(x) else None, outputs
        )
        spec = dataclasses.replace(spec, trains=True, input_gradients=True)
        function = self._function(spec, inputs)
        of_thetas, of_args = function.backward(function.forward(inputs), seeds)
        has_gradient = map(is_differentiable, present(inputs.args))
        return [
            tf.nest.flatten(of_thetas),
            list(itertools.compress(of_args, has_gradient)),
        ]


def prologue_spec(layers: Sequence[BaseLayer], cells: PipelineSpec) -> PipelineSpec:
    """Returns the specification of a prologue, on the first device of the pipeline."""
    return dataclasses.replace(
        cells,
        layers=layers,
        layout=dataclasses.replace(
            cells.layout,
            boundaries=[len(layers)],
            replicas=[cells.layout.devices[:1]],
            recomputed=[False] * len(layers),
        ),
        jit_compile=cells.jit_compile[:1],
    )


class PrologueInputs(NamedTuple):
    """Inputs of a forward pass of the prologue."""

    thetas: Sequence[Any]  # Weights of each layer.
    context: CallContext  # Step and first example.
    args: tuple  # Positional inputs of the first layer.


class PrologueOutputs(NamedTuple):
    """Outputs of the prologue's forward pass, and what the backward pass takes."""

    outputs: tuple  # Outputs of the last layer, as positional inputs of the next.
    accumulated: dict[str, tf.Tensor]  # Sums by the accumulators' paths.
    inputs: list[StageInputs]  # The inputs of each layer.
    stashes: list[Pack]  # The packed stash of each layer; empty without `trains`.


class PrologueFunction:
    """The prologue's forward and backward pass, for inputs of fixed shapes.

    No loop calls these passes: the forward pass returns its stash to the caller, who
    passes it to the backward pass. `num_bytes` counts weights, their gradients, and the
    stash.
    """

    def __init__(self, spec: PipelineSpec, specs: PrologueInputs):
        """Traces the layers, for inputs of the given specs.

        Raises:
            ValueError: if a layer breaks a rule of cells, or adds losses or metrics.
        """
        check_static(specs.args, spec.name)
        self._spec = spec
        self._device = loop_device(spec.layout.devices[0])
        context = specs.context._replace(path_hash=tf.TensorSpec([], tf.uint64))
        self._traced = spec.trace_layers(
            specs.thetas, context, specs.args, has_last=False
        )
        for layer, trace in zip(spec.layers, self._traced.traces, strict=True):
            _check_adds_nothing(layer, trace)
        self._outputs = as_args(self._traced.outputs)
        compiled = compilation(spec.jit_compile[0], spec.layout.devices[0])
        placed = self._traced.placed_layers([compiled] * len(spec.layers))
        warn_of_lost_checks(self._traced, [compiled.by_xla] * len(placed))
        self._stages = stages_of_one(placed)
        self.num_bytes = sum(
            num_bytes([*p.weights, *p.casts, *f.accumulators, *p.residuals])
            for f in [layer.functions for layer in placed]
            for p in [f.phases]
        )

    @property
    def draws(self) -> bool:
        """True if a layer draws random numbers."""
        return self._traced.draws

    @property
    def output_specs(self) -> tuple:
        """Specs of the tensors that the prologue passes to the first cell."""
        return map_present(lambda value: self._traced.specs[value], self._outputs)

    def forward(self, given: PrologueInputs) -> PrologueOutputs:
        """Runs the layers forward. Stashes residuals if the spec's `trains` is True."""
        values: Values = dict(enumerate(present(given.args)))
        all_sums, inputs, stashes = [], [], []
        for stage, layer, theta in zip(
            self._stages, self._spec.layers, given.thetas, strict=True
        ):
            with self._running("forward", layer):
                slot = None
                if self._spec.trains:
                    empty = stage.empty_stash(StashKind.RESIDUALS, tf.constant(1))
                    slot = _only_slot(empty)
                weights = stage.pack_weights([tf.nest.flatten(theta)])
                hashes = stage.pack_path_hashes()
                inputs.append(StageInputs(weights, hashes, given.context))
                output_values = stage.layers[0].values.made
                outputs, sums, stash = stage.forward(
                    inputs[-1], values, stage.zero_sums(), slot, wanted=output_values
                )
                values.update(outputs)
                all_sums += stage.unpack_sums(sums)
            stashes.append(stash)
        accumulated = sums_of(self._traced, all_sums).accumulated
        results = map_present(lambda value: values[value], self._outputs)
        return PrologueOutputs(results, accumulated, inputs, stashes)

    def backward(
        self, forward: PrologueOutputs, output_gradients: Any
    ) -> tuple[list[Any], list[Any]]:
        """Runs the layers backward, after a forward pass with `trains` in the spec.

        `output_gradients` has the structure of the outputs, with None for no gradient.

        Returns two lists. The first has each layer's gradients, in theta's structure,
        with None for untrained weights. The second has the gradient of each input that
        is present, or None.
        """
        gradients = self._seeds(output_gradients)
        of_layers = []
        passes = (self._stages, self._spec.layers, forward.inputs, forward.stashes)
        for stage, layer, inputs, stash in zip(*map(reversed, passes), strict=True):
            (placed,) = stage.layers
            with self._running("backward", layer):
                totals, _, packs = stage.backward(
                    inputs,
                    _only_slot(stash),
                    gradients,
                    stage.zero_gradients(),
                    wanted=placed.given_gradients,
                )
                gradients.update(totals)
                (accumulators,) = stage.gradients.unpack(packs)
                of_layers.append(
                    layer_gradients(placed, layer.vars, accumulators, None)
                )
        of_inputs = [gradients.get(value) for value in self._traced.inputs]
        return of_layers[::-1], of_inputs

    def _seeds(self, output_gradients: Any) -> Values:
        """Returns each output value's gradient, summed over repeats of the value."""
        seeds: Values = {}
        for value, gradient in zip(
            tf.nest.flatten(self._outputs),
            tf.nest.flatten(output_gradients),
            strict=True,
        ):
            if gradient is None or not is_differentiable(self._traced.specs[value]):
                continue
            seeds[value] = seeds[value] + gradient if value in seeds else gradient
        return seeds

    @contextlib.contextmanager
    def _running(self, direction: str, layer: BaseLayer) -> Iterator[None]:
        with tf.device(self._device), naming(f"the {direction} pass of {layer.path}"):
            yield


def _check_adds_nothing(layer: BaseLayer, trace: Trace) -> None:
    sums = trace.result.sums
    added = sorted({**sums.losses, **sums.metrics})
    if added:
        raise UserValueError(
            path=layer.path,
            expected="no losses or metrics of a layer in before_tpl",
            got=added,
            hint=f"Make the {type(layer).__name__} a cell.",
        )


def _only_slot(stash: Pack) -> StashSlot:
    return StashSlot(stash, tf.constant(0))
