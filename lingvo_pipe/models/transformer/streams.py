"""Streams of tokens: the state that a Transformer's layers pass on.

    state = NestedMap(
        source=NestedMap(ids, segment_ids, segment_pos, hidden),
        target=NestedMap(ids, segment_ids, segment_pos, hidden),
    )

    ids          the tokens, [B, S] of the source, [B, T] of the target
    segment_ids  the number of the token's sentence in its row, from 1, or 0 for padding
    segment_pos  the token's position in its sentence, from 0
    labels       the next tokens, [B, T], if known: for logits in slices
    hidden       [B, S, D] or [B, T, D], from the stream's embedding on

A layer changes one stream and passes on the rest, which costs no message. A language
model has only a target.

Shapes: B examples, S source tokens, T tokens of the target or of the layer's stream, V
tokens in the vocabulary, D channels.
"""

from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_choice, check_param
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.slicing import NumSlices, part_slices, slices_of
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.embedding import TokenEmbeddingLayer, sinusoidal_positions
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.nested_map import NestedMap

SOURCE = "source"
TARGET = "target"


def as_stream(batch: NestedMap, *optional: str) -> NestedMap:
    """Returns a stream: a batch's ids, segments, positions and `optional` fields."""
    names = ["ids", "segment_ids", "segment_pos", *(x for x in optional if x in batch)]
    return NestedMap({name: batch[name] for name in names})


def has_hidden(state: Any, stream: str) -> bool:
    """Returns whether `state` has hidden states in `stream`."""
    return isinstance(state, NestedMap) and "hidden" in state.get(stream, {})


def with_hidden(state: NestedMap, stream: str, hidden: Any) -> NestedMap:
    """Returns `state` with `hidden` as the hidden states of `stream`."""
    return NestedMap(state, **{stream: NestedMap(state[stream], hidden=hidden)})


def check_stream(layer: BaseLayer, name: str) -> None:
    """Raises ValueError unless the layer's param `name` is `source` or `target`."""
    check_choice(layer.params.Get(name), (SOURCE, TARGET), f"{layer.path}.{name}")


def check_memory(layer: BaseLayer) -> None:
    """Raises ValueError if a causal layer's `memory` is its own stream.

    Attention to a memory hides no later tokens.
    """
    check_stream(layer, "stream")
    if layer.params.memory is not None:
        check_stream(layer, "memory")
        refused = layer.params.stream if layer.params.causal else None
        expected = "None or another stream than the causal layer's own"
        check_param(layer, "memory", lambda x: x != refused, expected)


def plain_norm(dim: int = 0) -> InstantiableParams:
    """Returns params of a layer norm without scale and bias."""
    return LayerNormLayer.Params().Set(dim=dim, has_scale=False, has_bias=False)


class StreamEmbeddingLayer(CompositeLayer):
    """The sum of the embeddings of tokens and of positions, with dropout."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("stream", TARGET, "The stream: source or target.")
        p.Define("num_tokens", 0, "V.")
        p.Define("model_dim", 0, "D.")
        p.Define("keep_prob", 1.0, "Fraction that dropout keeps.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        table = TokenEmbeddingLayer.Params()
        return {
            "embedding": table.Set(num_tokens=p.num_tokens, dim=p.model_dim),
            "dropout": DropoutLayer.Params().Set(keep_prob=p.keep_prob),
        }

    def CheckParams(self) -> None:
        check_stream(self, "stream")

    @classmethod
    def SliceableParts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        return {"embedding": cls.Parts(p)["embedding"]}

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of the table's slices. The last adds positions and dropout."""
        embedding = cls.SliceableParts(p)["embedding"]
        tables = slices_of(embedding, part_slices(num_slices, "embedding"))
        tpl = CopyFieldsTo(p, _StreamEmbeddingSlice.Params()).Set(name="")
        slices = [tpl.Copy().Set(table=table) for table in tables]
        slices[-1].is_last = True
        return slices

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """Returns the state with hidden states `[B, T, D]` in the stream."""
        hidden = self.embedding.FProp(theta.embedding, state[self.params.stream].ids)
        return self.Finish(theta, state, hidden)

    def Finish(
        self, theta: NestedMap, state: NestedMap, hidden: tf.Tensor
    ) -> NestedMap:
        """Adds positions to the tokens' embeddings `hidden`, and runs the dropout."""
        p = self.params
        stream = state[p.stream]
        hidden += sinusoidal_positions(stream.segment_pos, p.model_dim, hidden.dtype)
        hidden = self.dropout.FProp(theta.dropout, hidden)
        return with_hidden(state, p.stream, hidden)


class _StreamEmbeddingSlice(StreamEmbeddingLayer):
    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("table", None, "Params of a slice of the embedding.")
        p.Define("is_last", False, "True if no other slice follows.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        parts = {**super().Parts(p), "embedding": p.table}
        return parts if p.is_last else {"embedding": p.table}

    def FProp(self, theta: NestedMap, state: NestedMap, *partial: Any) -> Any:
        ids = state[self.params.stream].ids
        outputs = as_args(self.embedding.FProp(theta.embedding, ids, *partial))
        if self.params.is_last:
            return self.Finish(theta, state, outputs[0])
        return state, outputs[1]


class StreamNormLayer(CompositeLayer):
    """A layer norm of a stream's hidden states."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("stream", TARGET, "The stream: source or target.")
        p.Define("norm_tpl", LayerNormLayer.Params(), "Params of the norm, with dim.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        return {"norm": p.norm_tpl}

    def CheckParams(self) -> None:
        check_stream(self, "stream")

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """Returns the state with new hidden states `[B, T, D]` in the stream."""
        stream = self.params.stream
        hidden = self.norm.FProp(theta.norm, state[stream].hidden)
        return with_hidden(state, stream, hidden)
