"""Which layers are alike: what one computes, another would compute too.

Alike are layers whose params are equal but for names, whose functions were added alike,
and which keep equal attributes, each with all layers below it. What FProp makes of a
layer's place is seen too, where it reads it; see `place_reads`. What it makes of the
object itself, such as of its index in a list kept elsewhere, is not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.pipeline.tracing.place_reads import PlaceReads


class LayerIdentity:
    """What decides on a forward pass, beside the values of theta and inputs.

    Attributes:
        reads: what FProp reads of places; nothing until it has been traced.
    """

    def __init__(self, layer: BaseLayer, specs: Any):
        """Initialises the identity.

        Args:
            layer: whose it is.
            specs: of theta, inputs and whatever else it is traced for.
        """
        self.reads = PlaceReads()
        self._layer = layer
        self._specs = repr(specs)
        self._params = layer.params.Copy().Set(name="")
        self._functions = [below.fns for below in layer.Descendants()]
        self._attributes = list(map(_attributes, layer.Descendants()))

    def is_alike(self, other: LayerIdentity) -> bool:
        """Whether the layers compute the same, wherever they are."""
        return (
            self._specs == other._specs
            and self._params == other._params
            and self._functions == other._functions
            and all(map(_same, self._attributes, other._attributes))
        )

    def reads_the_same(self, other: LayerIdentity) -> bool:
        """Whether what this layer was traced by of its place is so of an alike one."""
        return self.reads.same(self._layer, other._layer)


def _attributes(layer: BaseLayer) -> dict[str, Any]:
    """What a layer keeps beyond what every layer has."""
    return {k: v for k, v in vars(layer).items() if k not in _common_attributes()}


@functools.cache
def _common_attributes() -> frozenset[str]:
    return frozenset(vars(BaseLayer.Params().Set(name="any").Instantiate()))


def _same(a: Any, b: Any) -> bool:
    """Whether attributes are equal; what can't be compared is not."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, BaseLayer):
        # Those below are compared by themselves.
        return a.params.Copy().Set(name="") == b.params.Copy().Set(name="")
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    try:
        return bool(a == b)
    except Exception:
        return False
