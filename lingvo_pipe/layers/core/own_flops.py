"""Flops of layers whose classes give them by FPropMeta, instead of traced ones."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_args
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import as_shapes


class OwnFlops:
    """Flops of layers whose classes define FPropMeta.

    It replaces their FProp by one that counts them.

    Attributes:
        flops: flops of a run by its first operation, and 0 for its other operations.
        other_flops: flops of runs without operations.
    """

    def __init__(self, layers: Iterable[Any]):
        self.flops: dict[tf.Operation, int] = {}
        self.other_flops = 0
        default: Any = BaseLayer.FPropMeta
        for layer in layers:
            if layer.FPropMeta.__func__ is not default.__func__:
                layer.FProp = functools.partial(self._run, layer, layer.FProp)

    def _run(
        self, layer: Any, fprop: Callable, theta: Any, *args: Any, **named: Any
    ) -> Any:
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        outputs = fprop(theta, *args, **named)
        meta = layer.FPropMeta(layer.params, *map(as_shapes, args), **as_shapes(named))
        shapes = tuple(map(as_shapes, as_args(outputs)))
        if not (
            isinstance(meta, NestedMap)
            and isinstance(meta.get("flops"), numbers.Real)
            and tuple(meta.get("out_shapes", ())) == shapes
        ):
            raise UserValueError(
                path=f"{type(layer).__name__}.FPropMeta",
                expected=f"NestedMap(flops=a number, out_shapes={shapes})",
                got=meta,
            )
        # They include the flops of the layers within it.
        operations = graph.get_operations()[start:]
        self.flops.update(dict.fromkeys(operations, 0))
        if operations:
            self.flops[operations[0]] = int(meta.flops)
        else:
            self.other_flops += int(meta.flops)
        return outputs
