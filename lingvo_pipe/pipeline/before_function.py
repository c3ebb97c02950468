"""The layers before a pipeline, traced for certain shapes, forward and backward.

They obey the rules of cells, for they are traced as cells are, as one micro-batch of
all examples. What calls their phases is no loop, however: a forward run hands what it
keeps to the caller, and a backward run is given it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.loops.packing import Handles
from lingvo_pipe.pipeline.loops.stage_call import StashSlot, Values
from lingvo_pipe.pipeline.operation_errors import naming
from lingvo_pipe.pipeline.peak_memory import num_bytes
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.results import layer_gradients, sums_of
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings, Trace, is_differentiable


class Given(NamedTuple):
    """What a forward run is given.

    Attributes:
        thetas: for each layer its weights.
        told: what the layers are told.
        args: positional inputs of the first.
    """

    thetas: Sequence[Any]
    told: Surroundings
    args: tuple


class Forward(NamedTuple):
    """What a forward run leaves.

    Attributes:
        outputs: of the last layer, as positional inputs of the next.
        accumulated: dict of totals by the accumulators' paths.
        told: what the layers were told.
        weights: of each layer, packed.
        stashes: of each layer what it keeps, packed; nothing unless it is trained.
    """

    outputs: tuple
    accumulated: dict[str, tf.Tensor]
    told: Surroundings
    weights: list[Handles]
    stashes: list[Handles]


class BeforeFunction:
    """The layers, forward and backward.

    Attributes:
        num_bytes: what their weights, the gradients of these, and what is kept between
            forward and backward take.
    """

    def __init__(self, plan: Plan, specs: Given):
        """Traces the layers.

        Args:
            plan: of which all layers are on the first device.
            specs: as of what a run is given.

        Raises:
            ValueError: if a layer breaks a rule of cells, or adds losses or metrics.
        """
        _check_static(specs.args, plan.name)
        self._plan = plan
        self._device = loop_device(plan.devices[0])
        self._assembly = Assembly(
            plan.layers,
            specs.thetas,
            specs.told._replace(path_hash=tf.TensorSpec([], tf.uint64)),
            specs.args,
            None,
            None,
            LayerFunctions(
                plan.do_eval,
                plan.trains,
                plan.batch_dim,
                plan.state_dtype,
                has_last=False,
            ),
            plan.input_gradients,
        )
        for layer, trace in zip(plan.layers, self._assembly.traces, strict=True):
            _check_adds_nothing(layer, trace)
        self._outputs = as_args(self._assembly.outputs)
        compiled = compilation(plan.jit_compile[0], plan.devices[0])
        self._calls = self._assembly.stage_calls([compiled] * len(plan.layers))
        functions = [call.functions for call in self._calls]
        self.num_bytes = sum(
            num_bytes([*f.phases.weights, *f.totals, *f.phases.residuals])
            for f in functions
        )

    @property
    def output_specs(self) -> tuple:
        """Specs of the last layer's outputs, as positional inputs of the next."""
        return map_present(lambda value: self._assembly.specs[value], self._outputs)

    def forward(self, given: Given) -> Forward:
        """Runs the layers."""
        values: Values = dict(enumerate(present(given.args)))
        all_sums, all_weights, stashes = [], [], []
        for call, layer, theta in zip(
            self._calls, self._plan.layers, given.thetas, strict=True
        ):
            functions = call.functions
            with self._running("forward", layer):
                slot = None
                if self._plan.trains:
                    slot = _only_slot(functions.empty_residuals(tf.constant(1)))
                weights = functions.pack_weights(*tf.nest.flatten(theta))
                sums = functions.zero_sums()
                sums, stash = call.forward(weights, given.told, values, sums, slot)
                all_sums.append(functions.unpack_sums(*sums))
            all_weights.append(weights)
            stashes.append(stash)
        accumulated = sums_of(
            self._plan.layers, self._assembly.traces, all_sums
        ).accumulated
        outputs = map_present(lambda value: values[value], self._outputs)
        return Forward(outputs, accumulated, given.told, all_weights, stashes)

    def backward(
        self, forward: Forward, output_gradients: Any
    ) -> tuple[list[Any], list[Any]]:
        """Runs the layers backward.

        Args:
            forward: what the forward run left; the plan's `trains` must be set.
            output_gradients: in the structure of its outputs; None where there is none.

        Returns:
            For each layer its gradients in theta's structure, None for what is not
            trained; and those of the inputs that are there, None for what has none.
        """
        gradients = self._seeds(output_gradients)
        found = []
        for call, layer, weights, stash in zip(
            reversed(self._calls),
            reversed(self._plan.layers),
            reversed(forward.weights),
            reversed(forward.stashes),
            strict=True,
        ):
            functions = call.functions
            with self._running("backward", layer):
                _, totals = call.backward(
                    weights,
                    forward.told,
                    _only_slot(stash),
                    gradients,
                    functions.zero_gradients(),
                )
                found.append(layer_gradients(call, layer.vars, totals, None))
        inputs = [gradients.get(value) for value in self._assembly.inputs]
        return found[::-1], inputs

    def _seeds(self, output_gradients: Any) -> Values:
        """The gradients of values that outputs are; an output may be there twice."""
        found: Values = {}
        flat = tf.nest.flatten(self._outputs), tf.nest.flatten(output_gradients)
        for value, gradient in zip(*flat, strict=True):
            if gradient is None or not is_differentiable(self._assembly.specs[value]):
                continue
            found[value] = found[value] + gradient if value in found else gradient
        return found

    @contextlib.contextmanager
    def _running(self, direction: str, layer: BaseLayer) -> Iterator[None]:
        with tf.device(self._device), naming(f"the {direction} pass of {layer.path}"):
            yield


def _check_adds_nothing(layer: BaseLayer, trace: Trace) -> None:
    """Raises ValueError if a layer adds losses or metrics."""
    sums = trace.result.sums
    added = sorted({**sums.losses, **sums.metrics})
    if added:
        raise ValueError(
            "Layers before a pipeline can't add losses or metrics, for these are "
            f"those of micro-batches; the {type(layer).__name__} at {layer.path} "
            f"adds {added}. Make it a cell."
        )


def _check_static(args: Any, where: str) -> None:
    wrong = [f"{x.dtype.name} {x.shape}" for x in present(args) if not _is_static(x)]
    if wrong:
        raise ValueError(
            "Inputs of layers before a pipeline must have static shapes; "
            f"{where} was given {', '.join(wrong)}. Batch with drop_remainder=True, "
            "pad to a static shape, or state it by tf.ensure_shape."
        )


def _is_static(x: tf.TensorSpec) -> bool:
    return x.shape.is_fully_defined()


def _only_slot(stash: Handles) -> StashSlot:
    return StashSlot(stash, tf.constant(0))
