"""A layer of an encoder, of a decoder or of a language model.

    attention to itself, attention to the memory if there is one, feed-forward

each with a residual connection and layer norm around it.

Shapes: B examples, T tokens of the stream, S of the memory, D channels, N heads of H
channels.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.attention_mask import not_later, same_segment
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.feed_forward import FeedForwardLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.models.transformer.streams import TARGET, check_stream, with_hidden
from lingvo_pipe.nested_map import NestedMap


class TransformerLayer(BaseLayer):
    """Changes the hidden states of one stream; see `streams`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the streams, the width, and templates of the parts."""
        p = super().Params()
        p.Define("stream", TARGET, "Which stream it changes: source or target.")
        p.Define("memory", None, "The stream that is attended to; None: none is.")
        p.Define("causal", False, "Whether a token sees none of those after it.")
        p.Define("model_dim", 0, "D.")
        p.Define(
            "attention_tpl",
            MultiHeadAttentionLayer.Params(),
            "Of both attentions, but for dim.",
        )
        p.Define(
            "feed_forward_tpl",
            FeedForwardLayer.Params(),
            "Of the feed-forward part, but for dim.",
        )
        p.Define("norm_tpl", LayerNormLayer.Params(), "Of the norms, but for dim.")
        p.Define("norm_first", True, "Whether norms are before the parts or behind.")
        p.Define(
            "final_norm_tpl",
            None,
            "Of one more norm at the end, for the last layer where norms are first.",
        )
        p.Define("keep_prob", 1.0, "Of the dropout on what each part makes.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        for stream in (p.stream, p.memory or p.stream):
            check_stream(stream, self.path)
        for name, part in _parts(p).items():
            self.CreateChild(name, part)

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """The state, with other hidden states `[B, T, D]` in the stream."""
        p = self.params
        stream = state[p.stream]
        mask = same_segment(stream.segment_ids, stream.segment_ids)
        if p.causal:
            mask = tf.logical_and(mask, not_later(mask.shape[-1]))
        x = self.self_attention.FProp(theta.self_attention, stream.hidden, None, mask)
        if p.memory is not None:
            memory = state[p.memory]
            mask = same_segment(stream.segment_ids, memory.segment_ids)
            x = self.memory_attention.FProp(
                theta.memory_attention, x, memory.hidden, mask
            )
        return with_hidden(state, p.stream, self._end(theta, x))

    def InitStates(
        self, theta: NestedMap, state: NestedMap, batch_size: int, max_length: int
    ) -> NestedMap:
        """What `ExtendStep` needs of the past, and of the memory.

        Args:
            theta: weights.
            state: with the memory's hidden states, if the layer has one.
            batch_size: B.
            max_length: the most steps that there will be.

        Returns:
            NestedMap of `own`, keys and values of the steps, and of `memory`: keys,
            values and segment_ids. The one has B rows, the other as many as `state`.
        """
        p = self.params
        attention = self.self_attention.body
        states = NestedMap(own=attention.InitStates(batch_size, max_length))
        if p.memory is not None:
            memory, part = state[p.memory], self.memory_attention.body
            keys_values = part.KeysValues(theta.memory_attention.body, memory.hidden)
            # Here, so that a loop need not fetch them in each step.
            segment_ids = tf.identity(memory.segment_ids)
            states.memory = NestedMap(keys_values, segment_ids=segment_ids)
        return states

    def ExtendStep(
        self,
        theta: NestedMap,
        state: NestedMap,
        states: NestedMap,
        time_step: tf.Tensor,
    ) -> tuple[NestedMap, NestedMap]:
        """FProp of one token of each example, none of them padding.

        Args:
            theta: weights.
            state: of the stream alone, hidden states `[B, 1, D]`, B being static.
            states: as of `InitStates` or of the step before. The memory's rows may be
                fewer than B, each for equally many consecutive rows of the stream.
            time_step: [] int32, from 0.

        Returns:
            The state as of FProp, and the states for the next step.
        """
        p = self.params
        stream, extended = state[p.stream], NestedMap(states)

        def attend_to_itself(x: tf.Tensor) -> tf.Tensor:
            layer, weights = self.self_attention.body, theta.self_attention.body
            y, extended.own = layer.ExtendStep(weights, x, states.own, time_step)
            return y

        def attend_to_memory(x: tf.Tensor) -> tf.Tensor:
            layer, weights = self.memory_attention.body, theta.memory_attention.body
            num_rows = states.memory.segment_ids.shape[0]
            # The rows of one row of the memory ask side by side, as if in one sentence.
            shape = [num_rows, x.shape[0] // num_rows]
            segment_ids = tf.reshape(stream.segment_ids, shape)
            mask = same_segment(segment_ids, states.memory.segment_ids)
            queries = tf.reshape(x, [*shape, p.model_dim])
            found = layer.Attend(weights, queries, states.memory, mask)
            return tf.reshape(found, x.shape)

        x = self.self_attention.Around(
            theta.self_attention, stream.hidden, attend_to_itself
        )
        if p.memory is not None:
            x = self.memory_attention.Around(
                theta.memory_attention, x, attend_to_memory
            )
        return with_hidden(state, p.stream, self._end(theta, x)), extended

    def _end(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        """What comes behind the attentions, which is done token by token."""
        x = self.feed_forward.FProp(theta.feed_forward, x)
        if self.params.final_norm_tpl is not None:
            x = self.final_norm.FProp(theta.final_norm, x)
        return x

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: NestedMap) -> NestedMap:
        """The parts, of as many queries and keys as there are tokens with padding."""
        (state,) = shapes
        batch, num_tokens, _ = hidden = tuple(state[p.stream].hidden)
        further: dict[str, tuple[Any, ...]] = {
            "self_attention": (None, (batch, 1, num_tokens, num_tokens))
        }
        if p.memory is not None:
            memory = tuple(state[p.memory].hidden)
            further["memory_attention"] = memory, (batch, 1, num_tokens, memory[1])
        flops = sum(
            part.cls.FPropMeta(part, hidden, *further.get(name, ())).flops
            for name, part in _parts(p).items()
        )
        return NestedMap(flops=flops, out_shapes=(state,))


def _parts(p: InstantiableParams) -> dict[str, InstantiableParams]:
    """The children by name, in order."""
    residual = ResidualLayer.Params().Set(
        dim=p.model_dim,
        norm_tpl=p.norm_tpl,
        norm_first=p.norm_first,
        keep_prob=p.keep_prob,
    )
    attention = p.attention_tpl.Copy().Set(dim=p.model_dim)
    feed_forward = p.feed_forward_tpl.Copy().Set(dim=p.model_dim)
    parts = {"self_attention": residual.Copy().Set(body=attention)}
    if p.memory is not None:
        parts["memory_attention"] = residual.Copy().Set(body=attention)
    parts["feed_forward"] = residual.Copy().Set(body=feed_forward)
    if p.final_norm_tpl is not None:
        parts["final_norm"] = p.final_norm_tpl.Copy().Set(dim=p.model_dim)
    return parts
