"""Layers one after another."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap


def as_args(outputs: Any) -> tuple:
    """A layer's outputs as the positional inputs of the next."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


class SequentialLayer(BaseLayer):
    """Feeds each layer's outputs to the next; a tuple becomes several inputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the layers."""
        p = super().Params()
        p.Define("sub", [], "Params of the layers, in order.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("sub", self.params.sub)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the layers in order; none at all returns the inputs."""
        outputs: Any = args[0] if len(args) == 1 else args
        for layer, layer_theta in zip(self.sub, theta.sub, strict=True):
            outputs = layer.FProp(layer_theta, *as_args(outputs))
        return outputs

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The sum of the layers' costs."""
        flops = 0
        for sub in p.sub:
            meta = sub.cls.FPropMeta(sub, *shapes)
            flops += meta.flops
            shapes = tuple(meta.out_shapes)
        return NestedMap(flops=flops, out_shapes=shapes)
