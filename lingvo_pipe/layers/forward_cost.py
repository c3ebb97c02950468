"""The cost of simple forward passes, for FPropMeta."""

from __future__ import annotations

import math

from lingvo_pipe.nested_map import NestedMap


def elementwise_cost(shape: tuple, flops_an_element: int = 1) -> NestedMap:
    """The cost of a layer that keeps its input's shape."""
    flops = flops_an_element * math.prod(shape)
    return NestedMap(flops=flops, out_shapes=(tuple(shape),))
