"""Costs of forward passes, for FPropMeta.

A shape is a tuple of integers, or None for an absent input or output. Containers of
tensors have containers of shapes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap


def elementwise_cost(shape: tuple, flops_per_element: int = 1) -> NestedMap:
    """Returns the cost of a layer whose output has the shape of its input."""
    flops = flops_per_element * math.prod(shape)
    return NestedMap(flops=flops, out_shapes=(tuple(shape),))


def cost_of(p: InstantiableParams, *shapes: Any) -> NestedMap:
    """Returns FPropMeta of the layer of these params."""
    return p.cls.FPropMeta(p, *shapes)


def costs_in_sequence(
    layers: Iterable[InstantiableParams], *shapes: Any
) -> Iterator[NestedMap]:
    """Yields FPropMeta of layers that each take the outputs of the previous layer."""
    for p in layers:
        meta = cost_of(p, *shapes)
        shapes = tuple(meta.out_shapes)
        yield meta


def cost_of_sequence(layers: Iterable[InstantiableParams], *shapes: Any) -> NestedMap:
    """Returns the sum of `costs_in_sequence`, with the last layer's output shapes."""
    flops = 0
    for meta in costs_in_sequence(layers, *shapes):
        flops += meta.flops
        shapes = tuple(meta.out_shapes)
    return NestedMap(flops=flops, out_shapes=shapes)


def num_elements(shapes: Any) -> int:
    """Returns the number of elements in tensors of these shapes together."""
    if shapes is None:
        return 0
    if isinstance(shapes, Mapping):
        return sum(map(num_elements, shapes.values()))
    if all(isinstance(n, int) for n in shapes):
        return math.prod(shapes)
    return sum(map(num_elements, shapes))
