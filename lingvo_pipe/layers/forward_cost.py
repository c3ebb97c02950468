"""The cost of forward passes, for FPropMeta.

A shape is a tuple of integers; None stands for an input or output that is None, and
containers of shapes for those of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap


def elementwise_cost(shape: tuple, flops_an_element: int = 1) -> NestedMap:
    """The cost of a layer that keeps its input's shape."""
    flops = flops_an_element * math.prod(shape)
    return NestedMap(flops=flops, out_shapes=(tuple(shape),))


def costs_in_sequence(
    layers: Iterable[InstantiableParams], *shapes: Any
) -> Iterator[NestedMap]:
    """FPropMeta of layers that each take what the one before hands on.

    Args:
        layers: their params.
        *shapes: of the first one's inputs.
    """
    for p in layers:
        meta = p.cls.FPropMeta(p, *shapes)
        shapes = tuple(meta.out_shapes)
        yield meta


def cost_of_sequence(layers: Iterable[InstantiableParams], *shapes: Any) -> NestedMap:
    """The sum of `costs_in_sequence`, with the last one's shapes."""
    flops = 0
    for meta in costs_in_sequence(layers, *shapes):
        flops += meta.flops
        shapes = tuple(meta.out_shapes)
    return NestedMap(flops=flops, out_shapes=shapes)


def num_elements(shapes: Any) -> int:
    """How many elements tensors of these shapes have together."""
    if shapes is None:
        return 0
    if isinstance(shapes, Mapping):
        return sum(map(num_elements, shapes.values()))
    if all(isinstance(n, int) for n in shapes):
        return math.prod(shapes)
    return sum(map(num_elements, shapes))
