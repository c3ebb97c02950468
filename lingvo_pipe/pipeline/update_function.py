"""What changes the weights of a stage within a graph of several steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.tied_gradients import sum_tied
from lingvo_pipe.pipeline.tracing.trace import Trace

# `(layers, gradients, accumulated, step) -> notes`: changes the variables of layers by
# the gradients of a step's mean loss, for each in the structure of its `vars`; None for
# what is not trained. Accumulated are the totals, for each in the structure of its
# `accumulators`; step is `[]` int64. Notes are any tensors of static shape, which are
# kept for each step.
Update = Callable[[Sequence[BaseLayer], list[Any], list[Any], tf.Tensor], list[Any]]


def update_function(
    update: Update,
    layers: Sequence[BaseLayer],
    stage: Stage,
    traces: Sequence[Trace],
    device: str,
) -> Any:
    """The function of a `StageUpdate`.

    Args:
        update: what changes variables.
        layers: of the stage.
        stage: their calls, and the loss in the last.
        traces: of the calls.
        device: full name of the stage's.
    """
    phases = [call.functions.phases for call in stage.calls]
    learned = [
        [spec for spec, has in zip(p.weights, p.has_gradient, strict=True) if has]
        for p in phases
    ]
    sums = [list(p.sums) for p in phases]
    specs = [x for own in (*learned, *sums) for x in own]

    def run(*flat: tf.Tensor) -> list[tf.Tensor]:
        *parts, (step,) = cut_list(flat, *map(len, (*learned, *sums)))
        gradients = [
            _packed(layer, p.has_gradient, own)
            for layer, p, own in zip(layers, phases, parts, strict=False)
        ]
        accumulated = [
            _accumulated(layer, trace, own)
            for layer, trace, own in zip(
                layers, traces, parts[len(phases) :], strict=False
            )
        ]
        variables = [layer.vars for layer in layers]
        with tf.device(device):
            notes = update(layers, sum_tied(variables, gradients), accumulated, step)
        return [*map(_read, tf.nest.flatten(variables)), *notes]

    function = tf.function(run, autograph=False)
    return function.get_concrete_function(*specs, tf.TensorSpec([], tf.int64))


def _packed(
    layer: BaseLayer, has_gradient: Sequence[bool], flat: Sequence[tf.Tensor]
) -> Any:
    """A layer's gradients in the structure of its variables."""
    remaining = iter(flat)
    found = [next(remaining) if has else None for has in has_gradient]
    return tf.nest.pack_sequence_as(layer.vars, found)


def _accumulated(layer: BaseLayer, trace: Trace, flat: Sequence[tf.Tensor]) -> Any:
    """A layer's totals in the structure of its accumulators."""
    sums: NestedMap = tf.nest.pack_sequence_as(trace.result.sums, flat)
    totals = sums.get("accumulated", {})
    return layer.AccumulatedTree({f"{layer.path}/{k}": x for k, x in totals.items()})


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.read_value()
