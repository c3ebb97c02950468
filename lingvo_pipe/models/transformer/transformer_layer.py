"""A layer of an encoder, of a decoder or of a language model.

    self-attention, attention to the memory if there is one, feed-forward

each with a residual connection and layer norm around it.

Shapes: B examples, T tokens of the stream, D channels.
"""

import tensorflow as tf

from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.attention import (
    MultiHeadAttentionLayer,
    dim_size,
    same_segment,
)
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.slicing import NumSlices, part_slices, slices_of
from lingvo_pipe.layers.dense import FeedForwardLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.models.transformer.streams import TARGET, check_memory, with_hidden
from lingvo_pipe.models.transformer.transformer_slice import (
    TransformerSlice,
    part_inputs,
)
from lingvo_pipe.nested_map import NestedMap


class TransformerLayer(CompositeLayer):
    """A layer that changes the hidden states of one stream (see `streams`)."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("stream", TARGET, "The stream to change: source or target.")
        p.Define("memory", None, "The other stream, to attend to, or None.")
        p.Define("causal", False, "True if no token sees a later one.")
        p.Define("model_dim", 0, "D.")
        attention, body = MultiHeadAttentionLayer.Params(), FeedForwardLayer.Params()
        p.Define("attention_tpl", attention, "Params of both attentions, without dim.")
        description = "Params of the feed-forward part, without dim."
        p.Define("feed_forward_tpl", body, description)
        p.Define("norm_tpl", LayerNormLayer.Params(), "The norms' params, without dim.")
        p.Define("norm_first", True, "True for norms before the parts, else after.")
        p.Define(
            "final_norm_tpl",
            None,
            "Params of one more norm at the end, for a last layer with norms first.",
        )
        description = "Fraction of each part's outputs that dropout keeps."
        p.Define("keep_prob", 1.0, description)
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        residual = ResidualLayer.Params().Set(
            dim=p.model_dim,
            norm_tpl=p.norm_tpl,
            norm_first=p.norm_first,
            keep_prob=p.keep_prob,
        )
        bodies = {"self_attention": p.attention_tpl}
        if p.memory is not None:
            bodies["memory_attention"] = p.attention_tpl
        bodies["feed_forward"] = p.feed_forward_tpl
        parts = {
            name: residual.Copy().Set(body=body.Copy().Set(dim=p.model_dim))
            for name, body in bodies.items()
        }
        if p.final_norm_tpl is not None:
            parts["final_norm"] = p.final_norm_tpl.Copy().Set(dim=p.model_dim)
        return parts

    @classmethod
    def SliceableParts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        parts = cls.Parts(p)
        parts.pop("final_norm", None)
        return parts

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of cells: the slices of each part, or the part as a whole."""
        tpl = CopyFieldsTo(p, TransformerSlice.Params(), ignore_unknown_keys=True)
        slices = []
        for name, part in cls.SliceableParts(p).items():
            pieces = slices_of(part, part_slices(num_slices, name))
            slices += [tpl.Copy().Set(name="", part=name, body=x) for x in pieces]
            slices[-1].ends_part = True
        for slice_params in slices[:-1]:
            slice_params.final_norm_tpl = None
        slices[0].is_first = slices[-1].is_last = True
        return slices

    def CheckParams(self) -> None:
        check_memory(self)

    def FProp(self, theta: NestedMap, state: NestedMap) -> NestedMap:
        """Returns the state with new hidden states `[B, T, D]` in the stream."""
        p = self.params
        x = state[p.stream].hidden
        for name in ("self_attention", *["memory_attention"] * bool(p.memory)):
            args = part_inputs(p, name, state)
            x = self.children[name].FProp(theta[name], x, *args)
        return with_hidden(state, p.stream, self._finish(theta, x))

    def InitStates(
        self, theta: NestedMap, state: NestedMap, batch_size: int, max_length: int
    ) -> NestedMap:
        """Returns the states before the first `ExtendStep`, as a NestedMap.

        `own` has keys and values for `max_length` steps, in B rows. If the layer has a
        memory, `memory` has the memory's keys, values and segment_ids, in as many rows
        as `state`, which holds the memory's hidden states.
        """
        p = self.params
        attention = self.self_attention.body
        states = NestedMap(own=attention.InitStates(batch_size, max_length))
        if p.memory is not None:
            memory, part = state[p.memory], self.memory_attention.body
            keys_values = part.KeysValues(theta.memory_attention.body, memory.hidden)
            # A copy on this device, so that a loop need not fetch them in each step.
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
        """Runs FProp for T tokens of each row, without padding.

        `state` has only this stream, with hidden states `[B, T, D]`. `states` come from
        `InitStates` or from the previous step. The memory in `states` may have fewer
        than B rows. Then each row of the memory serves equally many consecutive rows of
        the stream. The first token's step, from 0, is int32 `[]` or, if T is 1, `[B]`.
        Returns FProp's state, and the states for the next step.
        """
        p = self.params
        stream, extended = state[p.stream], NestedMap(states)

        def attend_to_itself(x: tf.Tensor) -> tf.Tensor:
            layer, weights = self.self_attention.body, theta.self_attention.body
            y, extended.own = layer.ExtendStep(weights, x, states.own, time_step)
            return y

        def attend_to_memory(x: tf.Tensor) -> tf.Tensor:
            layer, weights = self.memory_attention.body, theta.memory_attention.body
            num_rows = dim_size(states.memory.segment_ids, 0)
            # Rows that share a row of the memory query it as if in one sentence.
            segment_ids = tf.reshape(stream.segment_ids, [num_rows, -1])
            mask = same_segment(segment_ids, states.memory.segment_ids)
            queries = tf.reshape(x, [num_rows, -1, p.model_dim])
            outputs = layer.Attend(weights, queries, states.memory, mask)
            return tf.reshape(outputs, [-1, dim_size(x, 1), p.model_dim])

        x = self.self_attention.Around(
            theta.self_attention, stream.hidden, attend_to_itself
        )
        if p.memory is not None:
            x = self.memory_attention.Around(
                theta.memory_attention, x, attend_to_memory
            )
        return with_hidden(state, p.stream, self._finish(theta, x)), extended

    def _finish(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        x = self.feed_forward.FProp(theta.feed_forward, x)
        if self.params.final_norm_tpl is not None:
            x = self.final_norm.FProp(theta.final_norm, x)
        return x
