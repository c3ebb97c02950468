"""Layer norm of a stream's hidden states.

Shapes: B examples, T tokens of the stream, D channels.
"""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.models.transformer.streams import TARGET, check_stream, with_hidden
from lingvo_pipe.nested_map import NestedMap


class StreamNormLayer(BaseLayer):
    """What ends a stack of layers whose norms come first, as a layer by itself."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: which stream, and the norm."""
        p = super().Params()
        p.Define("stream", TARGET, "Which stream: source or target.")
        p.Define("norm_tpl", LayerNormLayer.Params(), "Of the norm, with its dim.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_stream(self.params.stream, self.path)
        self.CreateChild("norm", self.params.norm_tpl)

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """The state, with other hidden states `[B, T, D]` in the stream."""
        stream = self.params.stream
        hidden = self.norm.FProp(theta.norm, state[stream].hidden)
        return with_hidden(state, stream, hidden)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: NestedMap) -> NestedMap:
        """The norm's cost."""
        (state,) = shapes
        meta = p.norm_tpl.cls.FPropMeta(p.norm_tpl, state[p.stream].hidden)
        return NestedMap(flops=meta.flops, out_shapes=shapes)
