"""Multi-head attention (Vaswani et al., 1706.03762, section 3.2).

    query = x·wq   key = m·wk   value = m·wv          for each of N heads
    softmax(query·keyᵀ / √H)·value, all heads concatenated, times wo

The memory `m` is `x` itself (self-attention) or another sequence (cross-attention).

Packed examples hold several segments in a row, numbered from 1. Padding is segment 0. A
query sees only keys of its own segment, so only padding sees padding.

    segments  1 1 1 2 2 0        query 3 (segment 2) sees keys 3 4, causally only 3

Shapes: B examples, T queries, S keys, D channels, N heads of H channels.
"""

from typing import ClassVar

import tensorflow as tf

from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.checks import check_counts
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.slice_layers import HiddenSlice, SliceLayer
from lingvo_pipe.nested_map import NestedMap


class MultiHeadAttentionLayer(CompositeLayer):
    """Multi-head attention of the inputs to themselves or to another sequence."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "D, of the inputs, of the memory and of the outputs.")
        p.Define("num_heads", 1, "N.")
        p.Define("dim_per_head", 64, "H; N·H may differ from D.")
        p.Define("has_bias", True, "True for biases after all four products.")
        p.Define("keep_prob", 1.0, "Fraction of the softmax that dropout keeps.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        dim, dense = p.num_heads * p.dim_per_head, FCLayer.Params()
        to_heads = dense.Set(input_dim=p.dim, output_dim=dim, has_bias=p.has_bias)
        return {
            **dict.fromkeys(("query", "key", "value"), to_heads),
            "output": to_heads.Copy().Set(input_dim=dim, output_dim=p.dim),
            "dropout": DropoutLayer.Params().Set(keep_prob=p.keep_prob),
        }

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has some of the heads."""
        return _AttentionSlice

    def CheckParams(self) -> None:
        check_counts(self, "dim", "num_heads", "dim_per_head")

    def FProp(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        memory: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Maps inputs `[B, T, D]` to `[B, T, D]`.

        The memory is `[B, S, D]`. If None, it is the inputs. The mask is boolean,
        broadcast to `[B, N, T, S]`, and True where a query sees a key. If None, every
        query sees every key. A query that sees no key weighs all keys equally.
        """
        memory = inputs if memory is None else memory
        return self.Attend(theta, inputs, self.KeysValues(theta, memory), mask)

    def KeysValues(self, theta: NestedMap, memory: tf.Tensor) -> NestedMap:
        """Maps a memory `[B, S, D]` to its `key` and `value`, `[B, N, S, H]` each."""
        return NestedMap(
            key=self._heads(self.key.FProp(theta.key, memory)),
            value=self._heads(self.value.FProp(theta.value, memory)),
        )

    def Attend(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        memory: NestedMap,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes FProp's outputs from the keys and values that `KeysValues` made."""
        p = self.params
        query = self._heads(self.query.FProp(theta.query, inputs))
        query *= p.dim_per_head**-0.5
        logits = tf.matmul(query, memory.key, transpose_b=True)
        weights = tf.cast(_masked_softmax(logits, mask), self.fprop_dtype)
        weights = self.dropout.FProp(theta.dropout, weights)
        heads = tf.transpose(tf.matmul(weights, memory.value), [0, 2, 1, 3])
        joined = tf.reshape(
            heads, [-1, dim_size(inputs, 1), p.num_heads * p.dim_per_head]
        )
        return self.output.FProp(theta.output, joined)

    def InitStates(self, batch_size: int, max_length: int) -> NestedMap:
        """Returns the initial states: zero keys and values `[B, N, max_length, H]`."""
        p = self.params
        shape = [batch_size, p.num_heads, max_length, p.dim_per_head]
        zeros = tf.zeros(shape, self.fprop_dtype)
        return NestedMap(key=zeros, value=zeros)

    def ExtendStep(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        states: NestedMap,
        time_step: tf.Tensor,
    ) -> tuple[tf.Tensor, NestedMap]:
        """Runs T steps of causal self-attention, given the states of earlier steps.

        Maps inputs `[B, T, D]` and states to outputs `[B, T, D]` and new states. The
        states come from `InitStates` or the previous call. `time_step`, int32 [], is
        the number of the first of these steps, from 0. If T is 1, it may be [B], for
        each row. A row that begins again at 0 does not see its earlier states.

        Raises:
            tf.errors.InvalidArgumentError: if the last step is not below max_length.
        """
        max_length, num_steps = dim_size(states.key, 2), dim_size(inputs, 1)
        message = f"{self._path}: expected fewer steps than max_length."
        tf.debugging.assert_less_equal(time_step + num_steps, max_length, message)
        positions, first = tf.range(max_length), tf.reshape(time_step, [-1, 1, 1, 1])
        is_past = positions[:, tf.newaxis] < first
        new = self.KeysValues(theta, inputs)
        # Later places, which no query sees yet, have the last key and value, too.
        if inputs.shape[1] != 1:
            places = tf.clip_by_value(positions - time_step, 0, num_steps - 1)
            new = new.Transform(lambda x: tf.gather(x, places, axis=2))
        states = NestedMap(
            key=tf.where(is_past, states.key, new.key),
            value=tf.where(is_past, states.value, new.value),
        )
        mask = positions <= first + tf.range(num_steps)[:, tf.newaxis]
        return self.Attend(theta, inputs, states, mask), states

    def _heads(self, x: tf.Tensor) -> tf.Tensor:
        """Splits the channels into heads: `[B, T, N·H]` -> `[B, N, T, H]`."""
        p = self.params
        x = tf.reshape(x, [-1, dim_size(x, 1), p.num_heads, p.dim_per_head])
        return tf.transpose(x, [0, 2, 1, 3])


class _AttentionSlice(HiddenSlice, MultiHeadAttentionLayer):
    UNITS = "num_heads"
    AXES: ClassVar = {
        **dict.fromkeys(("query/w", "key/w", "value/w"), 1),
        **dict.fromkeys(("query/b", "key/b", "value/b", "output/w"), 0),
    }
    PRODUCT = "output"
    DROPOUT_AXIS = 1

    @classmethod
    def UnitSize(cls, p: InstantiableParams, path: str) -> int:
        return p.dim_per_head


def dim_size(x: tf.Tensor, dim: int) -> int | tf.Tensor:
    """Returns the size of a dimension: an integer if it is static, else a tensor."""
    return tf.shape(x)[dim] if x.shape[dim] is None else x.shape[dim]


def same_segment(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Maps segments `[B, T]` and `[B, S]` to a mask `[B, 1, T, S]`: True if equal."""
    return tf.equal(queries[:, tf.newaxis, :, tf.newaxis], keys[:, None, None])


def not_later(num_tokens: int) -> tf.Tensor:
    """Returns the causal mask `[T, T]`: True for keys at or before the query."""
    positions = tf.range(num_tokens)
    return positions[tf.newaxis] <= positions[:, tf.newaxis]


def _masked_softmax(logits: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns the softmax of logits `[B, N, T, S]` over keys, in float32 or wider."""
    wide = wide_dtype(logits.dtype)
    logits = tf.cast(logits, wide)
    if mask is not None:
        # Finite, so that the weights are numbers even if a query sees no key.
        low = tf.constant(wide.min / 2, wide)
        logits += tf.where(mask, tf.zeros([], wide), low)
    return tf.nn.softmax(logits)
