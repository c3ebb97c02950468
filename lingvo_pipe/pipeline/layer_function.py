"""A layer's forward pass as a function that alike layers share.

It is kept out of line and takes theta as an argument, never by capture; so a hundred
equal layers are traced once, and the operations within are the same however the layers
are grouped into stages: the ground on which results do not depend on the number of
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext

OUT_OF_LINE = {"autograph": False, "experimental_attributes": {"_noinline": True}}

# Operations that TensorFlow calls stateful and that a layer may use all the same: they
# only call functions, or report. Running them once more in the recomputation is fine.
_HARMLESS = {
    "Assert",
    "Case",
    "If",
    "Placeholder",
    "PrintV2",
    "StatefulPartitionedCall",
    "While",
}


class LayerFunctions:
    """The functions of a model's layers in training or in evaluation."""

    def __init__(self, do_eval: bool):
        self._do_eval = do_eval
        self._known: list[tuple[Any, Callable]] = []

    def __getitem__(self, layer: BaseLayer) -> Callable:
        """The function `(theta, path_hash, step, first_example, *args)` of a layer.

        It returns the layer's outputs and a dict of accumulated sums by the path of
        the accumulator relative to the layer.
        """
        identity = _identity(layer)
        for known, function in self._known:
            if known == identity:
                return function
        function = _make(layer, self._do_eval)
        self._known.append((identity, function))
        return function


def _identity(layer: BaseLayer) -> Any:
    """What decides on a layer's forward pass: equal for layers that may share one."""
    functions = [d.fns for d in layer.Descendants() if d.fns]
    return layer.params.Copy().Set(name=""), functions


def _make(layer: BaseLayer, do_eval: bool) -> Callable:
    def forward(
        theta: Any, path_hash: tf.Tensor, step: Any, first_example: Any, *args: Any
    ) -> Any:
        context = ForwardContext(
            do_eval=do_eval,
            step=step,
            first_example=first_example,
            root_path=layer.path,
            root_hash=path_hash,
        )
        with context:
            outputs = layer.FProp(layer.CastTheta(theta), *args)
        _check_graph(layer, tf.compat.v1.get_default_graph())
        return outputs, _accumulated(layer, context)

    return tf.function(forward, **OUT_OF_LINE)


def _accumulated(layer: BaseLayer, context: ForwardContext) -> dict[str, tf.Tensor]:
    if context.do_eval:
        return {}
    registered = {context.relative_path(path) for path in accumulator_paths(layer)}
    missing = sorted(registered - set(context.accumulated))
    if missing:
        raise ValueError(
            "Every registered accumulator must be given its share in each training "
            f"forward pass; {layer.path} was not given {missing}. Call Accumulate."
        )
    return context.accumulated


def accumulator_paths(layer: BaseLayer) -> Iterator[str]:
    """Paths of all accumulators below a layer."""
    for descendant in layer.Descendants():
        for name in descendant.own_accumulators:
            yield f"{descendant.path}/{name}"


def _check_graph(layer: BaseLayer, graph: Any) -> None:
    """Refuses what would differ between a forward pass and its recomputation."""
    where = f"that of a {type(layer).__name__} at {layer.path}"
    captured = [t for t in graph.external_captures if t.dtype == tf.resource]
    if captured:
        variables = _root(layer).VariablePaths().items()
        paths = [k for k, v in variables if any(v.handle is t for t in captured)]
        raise ValueError(
            f"FProp must take its weights from theta; {where} reads the variables "
            f"{paths} directly. Use theta.<name> instead of self.vars or self.theta."
        )
    library = graph.as_graph_def().library.function
    types = {op.type for op in graph.get_operations()}
    types.update(node.op for function in library for node in function.node_def)
    functions = {function.signature.name for function in library}
    stateful = [
        op_type
        for op_type in sorted(types - _HARMLESS - functions)
        if graph.op_def_for_type(op_type).is_stateful
    ]
    if stateful:
        raise ValueError(
            "FProp must be a pure function, for it runs a second time in the backward "
            f"pass; {where} has the stateful operations {stateful}. For random numbers "
            "use the forward context's uniform (or DropoutLayer), for statistics "
            "Accumulate."
        )


def _root(layer: BaseLayer) -> BaseLayer:
    return layer if layer.parent is None else _root(layer.parent)
