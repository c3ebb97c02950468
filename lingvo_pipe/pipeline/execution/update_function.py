"""Updates of a stage's weights within a graph of several steps.

Gradients of a tied weight, which has several paths in a model, are summed here.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.tracing.trace import Trace

# `(layers, gradients, accumulated, step) -> notes`: updates the variables of layers.
# Gradients are of a step's mean loss, for each layer in the structure of its `vars`;
# None for weights that are not trained. Accumulated are sums, for each layer in the
# structure of its `accumulators`; step is `[]` int64. Notes are any tensors of static
# shape, which are returned for each step.
Update = Callable[[Sequence[BaseLayer], list[Any], list[Any], tf.Tensor], list[Any]]


def sum_tied(variables: Any, gradients: Any) -> Any:
    """Sums the gradients of each tied weight over its positions in `variables`.

    Returns the gradients in the same structure, with the sum at a variable's first
    position and None at its others.
    """
    positions: dict[Any, list[int]] = {}
    for i, variable in enumerate(tf.nest.flatten(variables)):
        positions.setdefault(variable.ref(), []).append(i)
    flat = tf.nest.flatten(gradients)
    for variable, (first, *later_positions) in positions.items():
        with tf.device(variable.deref().device):
            for i in later_positions:
                if flat[i] is not None:
                    flat[first] = (
                        flat[i] if flat[first] is None else flat[first] + flat[i]
                    )
                flat[i] = None
    return tf.nest.pack_sequence_as(variables, flat)


def update_function(
    update: Update,
    layers: Sequence[BaseLayer],
    traces: Sequence[Trace],
    stage: Stage,
    device: str,
) -> Any:
    """Returns the function of a `StageUpdate`, for a stage's layers and traces."""
    phases = [layer.functions.phases for layer in stage.layers]
    trained = [list(itertools.compress(p.weights, p.has_gradient)) for p in phases]
    specs = [*trained, *(p.sums for p in phases)]

    def run(*flat: tf.Tensor) -> list[tf.Tensor]:
        *lists, (step,) = cut_list(flat, *map(len, specs))
        gradients = [
            pack_trained(layer.vars, p.has_gradient, layer_gradients)
            for layer, p, layer_gradients in zip(layers, phases, lists, strict=False)
        ]
        accumulated = list(map(_accumulated, layers, traces, lists[len(phases) :]))
        variables = [layer.vars for layer in layers]
        with tf.device(device):
            notes = update(layers, sum_tied(variables, gradients), accumulated, step)
        return [*map(_read, tf.nest.flatten(variables)), *notes]

    function = tf.function(run, autograph=False)
    flat_specs = itertools.chain(*specs, [tf.TensorSpec([], tf.int64)])
    return function.get_concrete_function(*flat_specs)


def pack_trained(
    theta: Any, has_gradient: Sequence[bool], flat: Sequence[tf.Tensor]
) -> Any:
    """Returns a layer's gradients in theta's structure, None for untrained weights."""
    remaining = iter(flat)
    gradients = [next(remaining) if has else None for has in has_gradient]
    return tf.nest.pack_sequence_as(theta, gradients)


def _accumulated(layer: BaseLayer, trace: Trace, flat: Sequence[tf.Tensor]) -> Any:
    """Returns a layer's sums in the structure of its accumulators."""
    sums: NestedMap = tf.nest.pack_sequence_as(trace.result.sums, flat)
    accumulators = sums.get("accumulated", {})
    return layer.AccumulatedTree(
        {f"{layer.path}/{k}": x for k, x in accumulators.items()}
    )


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.read_value()
