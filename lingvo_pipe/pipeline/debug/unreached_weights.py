"""Finds the weights that no loss reaches.

Follows gradients backward from the loss, through the traces of the layers. A
weight whose gradient does not depend on a gradient from the loss does not change.
"""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers
from lingvo_pipe.pipeline.tracing.cut import dependents
from lingvo_pipe.pipeline.tracing.trace import Trace

_MAX_NAMED = 5


def warn_of_unreached_weights(traced: TracedLayers) -> None:
    """Logs a warning that names trained weights on which no loss depends, if any."""
    paths = _unreached_weights(traced)
    if paths:
        tf.get_logger().warning(
            "No loss depends on %s: training does not change them. Look for an "
            "unused output, a tf.stop_gradient, or a function with a gradient of its "
            "own, such as keras.remat's, that reads them without taking them as "
            "arguments. If it is intended, create them with trainable=False.",
            first_names(paths, _MAX_NAMED),
        )


def _unreached_weights(traced: TracedLayers) -> list[str]:
    *layer_calls, loss = zip(traced.values, traced.traces, strict=True)
    reached = set(loss[0].gives)
    reach_of_trace: dict[tuple[int, tuple[int, ...]], tuple[set[int], set[int]]] = {}
    trained: dict[int, bool] = {}
    for layer, (call, trace) in zip(
        reversed(traced.layers), reversed(layer_calls), strict=True
    ):
        seeded = tuple(i for i, value in enumerate(call.made) if value in reached)
        key = id(trace), seeded
        if key not in reach_of_trace:
            reach_of_trace[key] = _reach(trace, seeded)
        weights, inputs = reach_of_trace[key]
        reached.update(call.args[i] for i in inputs)
        for i, variable in enumerate(tf.nest.flatten(layer.vars)):
            if trace.weight_gradients[i] is not None:
                trained[id(variable)] = trained.get(id(variable)) or i in weights
    return [
        path
        for layer in traced.layers
        for path, variable in layer.VariablePaths().items()
        if not trained.get(id(variable), True)
    ]


def _reach(trace: Trace, seeded: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns positions of a layer's weights and inputs that gradients reach.

    Gradients start at the outputs at the positions `seeded`, and at auxiliary losses.
    """
    seeds = [*(trace.output_gradients[i] for i in seeded), *trace.goal_seeds]
    reached = dependents(trace.graph, {x.op for x in seeds if x is not None})
    weights, inputs = (
        {i for i, x in enumerate(gradients) if x is not None and x.op in reached}
        for gradients in (trace.weight_gradients, trace.input_gradients)
    )
    return weights, inputs
