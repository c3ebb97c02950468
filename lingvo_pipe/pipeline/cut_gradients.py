"""Finds the weights that no loss depends on.

Gradients are followed from the loss backward, through the traces of the layers: a
weight whose gradient follows from none of those that a layer is given stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.tracing.trace import Trace

_MOST_NAMED = 5


def warn_of_cut_gradients(assembly: Assembly) -> None:
    """Logs a line if there are trained weights that no loss depends on.

    Args:
        assembly: of a model with its loss, differentiated.
    """
    paths = weights_without_gradient(assembly)
    if paths:
        more = f" and {len(paths) - _MOST_NAMED} more" * (len(paths) > _MOST_NAMED)
        tf.get_logger().warning(
            "No loss depends on %s%s: training does not change them. Look for an "
            "output that is not used, or a tf.stop_gradient; if it is meant, create "
            "them with trainable=False.",
            ", ".join(paths[:_MOST_NAMED]),
            more,
        )


def weights_without_gradient(assembly: Assembly) -> list[str]:
    """The paths of trained weights that no loss depends on, in the model's order.

    Args:
        assembly: as of `warn_of_cut_gradients`.
    """
    *of_layers, loss = zip(assembly.calls, assembly.traces, strict=True)
    reached = set(loss[0].gives)
    known: dict[tuple[int, tuple[int, ...]], _Reach] = {}
    trained: dict[int, bool] = {}
    for layer, (call, trace) in zip(
        reversed(assembly.layers), reversed(of_layers), strict=True
    ):
        seeded = tuple(i for i, value in enumerate(call.made) if value in reached)
        key = id(trace), seeded
        if key not in known:
            known[key] = _reach(trace, seeded)
        reached.update(call.args[i] for i in known[key].inputs)
        for i, variable in enumerate(tf.nest.flatten(layer.vars)):
            if trace.weight_gradients[i] is not None:
                has = i in known[key].weights
                trained[id(variable)] = trained.get(id(variable), False) or has
    return [
        path for path, v in _variables(assembly.layers) if not trained.get(id(v), True)
    ]


def _variables(layers: Iterable[BaseLayer]) -> Iterable[tuple[str, tf.Variable]]:
    for layer in layers:
        yield from layer.VariablePaths().items()


class _Reach(NamedTuple):
    """To which of a trace's weights and inputs gradients come: their places."""

    weights: set[int]
    inputs: set[int]


def _reach(trace: Trace, seeded: Sequence[int]) -> _Reach:
    """What gradients of some of the outputs, and of side losses, come to.

    Args:
        trace: of a layer.
        seeded: which of what it makes have gradients.
    """
    seeds = [trace.output_gradients[i] for i in seeded]
    seeds += trace.goal_seeds
    found = {x.op for x in seeds if x is not None}
    for op in trace.graph.get_operations():
        if any(x.op in found for x in op.inputs):
            found.add(op)
    return _Reach(
        *(
            {i for i, x in enumerate(gradients) if x is not None and x.op in found}
            for gradients in (trace.weight_gradients, trace.input_gradients)
        )
    )
