"""Flops of layers whose classes define FPropMeta, in place of traced flops."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserError, UserLayerError
from lingvo_pipe.core.nests import as_args, map_present
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import as_shapes

# Errors of a layer that does not take its inputs.
TRACE_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError),
    *(TypeError, ValueError, tf.errors.OpError),
)
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class OwnFlops:
    """The flops of those layers in a tree that define FPropMeta themselves.

    The object replaces the FProp of such a layer by a function that also counts the
    flops from FPropMeta. These include the flops of the layers below, whose FProp is
    not replaced. The FPropMeta of the tree's root counts only if `with_root`.

    Attributes:
        flops: flops by operation. The first operation of a run of FProp has the run's
            flops, and the run's other operations have 0.
        other_flops: flops of runs of FProp without operations.
    """

    def __init__(self, layer: Any, with_root: bool = True):
        self.flops: dict[tf.Operation, int] = {}
        self.other_flops = 0
        self._replace(layer, with_root)

    def _replace(self, layer: Any, is_counted: bool = True) -> None:
        if is_counted and _has_own_meta(layer):
            layer.FProp = functools.partial(self._run, layer, layer.FProp)
            return
        for child in tf.nest.flatten(list(layer.children.values())):
            self._replace(child)

    def _run(
        self, layer: Any, fprop: Callable, theta: Any, *args: Any, **named: Any
    ) -> Any:
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        outputs = fprop(theta, *args, **named)
        operations = graph.get_operations()[start:]
        arguments = inspect.signature(fprop).bind(theta, *args, **named)
        flops = _checked_flops(layer, _meta(layer, arguments), outputs)
        self.flops.update(dict.fromkeys(operations, 0))
        if operations:
            self.flops[operations[0]] = flops
        else:
            self.other_flops += flops
        return outputs


def reason(error: Exception) -> str:
    """Returns an error's message, after the error's type unless it's a UserError."""
    is_sentence = isinstance(error, UserError)
    return str(error) if is_sentence else f"{type(error).__name__}: {error}"


def _has_own_meta(layer: Any) -> bool:
    default: Any = BaseLayer.FPropMeta
    is_default = getattr(layer.FPropMeta, "__func__", None) is default.__func__
    return not is_default and not getattr(layer, "only_traces_meta", False)


def _meta(layer: Any, arguments: inspect.BoundArguments) -> Any:
    """Calls a layer's FPropMeta with the inputs of FProp that FPropMeta takes."""
    parameters = inspect.signature(layer.FPropMeta).parameters
    kinds = [x.kind for x in parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        args = arguments.args[1:]
    else:
        arguments.apply_defaults()
        args = arguments.args[1 : sum(kind in _POSITIONAL for kind in kinds)]
    named = arguments.kwargs
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        named = {key: x for key, x in named.items() if key in parameters}
    args, named = tuple(map(as_shapes, args)), as_shapes(named)
    try:
        return as_shapes(layer.FPropMeta(layer.params, *args, **named))
    except TRACE_ERRORS as error:
        raise UserLayerError(
            path=f"{type(layer).__name__}.FPropMeta",
            expected="a method that takes the shapes of FProp's inputs",
            got=(*args, *named.values()),
            hint=reason(error),
        ) from error


def _checked_flops(layer: Any, meta: Any, outputs: Any) -> int:
    tensors = map_present(tf.convert_to_tensor, as_args(outputs))
    shapes = tuple(map(as_shapes, tensors))
    if not (
        isinstance(meta, NestedMap)
        and isinstance(meta.get("flops"), numbers.Real)
        and meta.flops >= 0
        and isinstance(meta.get("out_shapes"), (list, tuple))
        and tuple(meta.out_shapes) == shapes
    ):
        raise UserLayerError(
            path=f"{type(layer).__name__}.FPropMeta",
            expected=f"NestedMap(flops=a number >= 0, out_shapes={shapes})",
            got=meta,
        )
    return int(meta.flops)
