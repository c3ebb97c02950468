"""The functions added to a layer, once a pipeline has traced it.

A trace is kept for good, in the pipeline and in whatever graph runs it. A function that
came later would never be called.
"""

from __future__ import annotations

from collections.abc import Callable

from lingvo_pipe.layers.base_layer import BaseLayer


def close_functions(layer: BaseLayer) -> None:
    """Has a layer, and those below it, take no more functions."""
    for below in layer.Descendants():
        below._functions = _TracedFunctions(below)


class _TracedFunctions(dict[str, Callable]):
    """Functions by name, to which none can be added."""

    def __init__(self, layer: BaseLayer):
        super().__init__(layer.fns)
        self._path = layer.path

    def __setitem__(self, name: str, function: Callable) -> None:
        raise ValueError(
            "A layer's functions must be added before it runs in a pipeline, which "
            f"traces it once and for all; {self._path} was given {name!r} afterwards. "
            "Call AddFunction before the first run; for another function later, make "
            "the layers anew, or have FProp choose by an input."
        )
