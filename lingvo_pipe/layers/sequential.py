"""Layers one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import cost_of_sequence
from lingvo_pipe.nested_map import NestedMap


def as_args(outputs: Any) -> tuple:
    """A layer's outputs as the positional inputs of the next."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def outputs_in_sequence(
    layers: Sequence[BaseLayer], thetas: Sequence[NestedMap], args: Sequence[Any]
) -> Iterator[Any]:
    """Yields what is handed on: the inputs, then each layer's outputs."""
    outputs: Any = args[0] if len(args) == 1 else tuple(args)
    yield outputs
    for layer, theta in zip(layers, thetas, strict=True):
        outputs = layer.FProp(theta, *as_args(outputs))
        yield outputs


class SequentialLayer(BaseLayer):
    """Feeds each layer's outputs to the next; a tuple becomes several inputs.

    Its children are `sub`; or with `repeat` above 1 `rep`, SequentialLayers of `sub`.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the layers."""
        p = super().Params()
        p.Define("sub", [], "Params of the layers, in order.")
        p.Define(
            "repeat", 1, "How many times all run in turn, each time with own weights."
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        _check_repeat(p.repeat, self.path)
        self._list = "sub" if p.repeat == 1 else "rep"
        once = p.Copy().Set(name="", repeat=1)
        self.CreateChildren(self._list, p.sub if p.repeat == 1 else [once] * p.repeat)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the layers in order; none at all returns the inputs."""
        layers, thetas = self.children[self._list], theta[self._list]
        *_, last = outputs_in_sequence(layers, thetas, args)
        return last

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The sum of the layers' costs."""
        return cost_of_sequence(list(p.sub) * p.repeat, *shapes)


def _check_repeat(repeat: Any, where: str) -> None:
    """Raises ValueError unless `repeat` is an integer of at least 1."""
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise ValueError(
            f"repeat must be an integer of at least 1; {where} has {repeat!r}. For no "
            "layer at all let sub be empty."
        )
