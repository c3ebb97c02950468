"""The layer in which a stream gets its hidden states.

Shapes: B examples, T tokens of the stream, V tokens in the vocabulary, D channels.
"""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.layers.positions import sinusoidal_flops, sinusoidal_positions
from lingvo_pipe.layers.token_embedding import TokenEmbeddingLayer
from lingvo_pipe.models.transformer.streams import TARGET, check_stream, with_hidden
from lingvo_pipe.nested_map import NestedMap


class StreamEmbeddingLayer(BaseLayer):
    """dropout(embedding of the tokens + positions)."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: which stream, sizes and dropout."""
        p = super().Params()
        p.Define("stream", TARGET, "Which stream: source or target.")
        p.Define("num_tokens", 0, "V.")
        p.Define("model_dim", 0, "D.")
        p.Define("keep_prob", 1.0, "Of the dropout.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_stream(p.stream, self.path)
        self.CreateChild("embedding", _embedding(p))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=p.keep_prob))

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """The state, with hidden states `[B, T, D]` in the stream."""
        p = self.params
        stream = state[p.stream]
        hidden = self.embedding.FProp(theta.embedding, stream.ids)
        hidden += sinusoidal_positions(stream.segment_pos, p.model_dim, hidden.dtype)
        hidden = self.dropout.FProp(theta.dropout, hidden)
        return with_hidden(state, p.stream, hidden)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: NestedMap) -> NestedMap:
        """Positions, a sum and dropout."""
        (state,) = shapes
        embedding, ids = _embedding(p), tuple(state[p.stream].ids)
        meta = embedding.cls.FPropMeta(embedding, ids)
        (hidden,) = meta.out_shapes
        meta.flops += sinusoidal_flops(ids, p.model_dim)
        meta.flops += elementwise_cost(hidden, 1 if p.keep_prob == 1.0 else 4).flops
        meta.out_shapes = (with_hidden(state, p.stream, hidden),)
        return meta


def _embedding(p: InstantiableParams) -> InstantiableParams:
    return TokenEmbeddingLayer.Params().Set(num_tokens=p.num_tokens, dim=p.model_dim)
