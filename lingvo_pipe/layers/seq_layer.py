"""A model's cells one after another, without a pipeline."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import cost_of_sequence
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.nested_map import NestedMap


class SeqLayer(BaseLayer):
    """What a PipeliningLayer of the same cells computes, on one device.

    Of equal names, its variables have equal paths too: weights can be trained by the
    one and used by the other.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the cells, and what comes before them."""
        p = super().Params()
        p.Define("before_tpl", [], "Params of the layers that run first, in order.")
        p.Define("cell_tpl", [], "Params of the cells, in order.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("before", self.params.before_tpl)
        self.CreateChildren("cells", self.params.cell_tpl)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs all in order; none at all returns the inputs."""
        layers, thetas = self.before + self.cells, theta.before + theta.cells
        *_, last = outputs_in_sequence(layers, thetas, args)
        return last

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The sum of all costs."""
        return cost_of_sequence([*p.before_tpl, *p.cell_tpl], *shapes)
