"""Multi-head attention (Vaswani et al., 1706.03762, section 3.2).

    query = x·wq   key = m·wk   value = m·wv          for each of N heads
    softmax(query·keyᵀ / √H)·value, all heads side by side, times wo

`x` asks; the memory `m` is `x` itself (self-attention) or another sequence (cross-
attention). Which keys a query may see is a mask, see `attention_mask`.

Shapes: B examples, T queries, S keys, D channels, N heads of H channels.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dimension_params import check_dimensions
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.nested_map import NestedMap

_SOFTMAX_FLOPS = 5  # an element: maximum, difference, exponential, sum, quotient


class MultiHeadAttentionLayer(BaseLayer):
    """Each query's mean of the values whose keys it resembles, head by head."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: sizes, biases and dropout."""
        p = super().Params()
        p.Define("dim", 0, "D, of what asks, of the memory and of the outputs.")
        p.Define("num_heads", 1, "N.")
        p.Define("dim_per_head", 64, "H, whatever D and N are: N·H need not be D.")
        p.Define("has_bias", True, "Whether there are biases after all four products.")
        p.Define("keep_prob", 1.0, "Of the dropout on the softmax.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_dimensions(p, self.path, "dim", "num_heads", "dim_per_head")
        for name in ("query", "key", "value"):
            self.CreateChild(name, _to_heads(p))
        self.CreateChild("output", _from_heads(p))
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=p.keep_prob))

    def FProp(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        memory: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Attends; T and S must be known when tracing.

        Args:
            theta: weights.
            inputs: `[B, T, D]`.
            memory: `[B, S, D]`; None: the inputs.
            mask: boolean, broadcast to `[B, N, T, S]`: True where a query may see a
                key. One that may see none sees all alike. None: all may be seen.

        Returns:
            `[B, T, D]`.
        """
        memory = inputs if memory is None else memory
        return self.Attend(theta, inputs, self.KeysValues(theta, memory), mask)

    def KeysValues(self, theta: NestedMap, memory: tf.Tensor) -> NestedMap:
        """`[B, S, D]` -> NestedMap of key and value, `[B, N, S, H]` each."""
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
        """As FProp, with the memory's keys and values as of `KeysValues`."""
        p = self.params
        query = self._heads(self.query.FProp(theta.query, inputs))
        query *= p.dim_per_head**-0.5
        logits = tf.matmul(query, memory.key, transpose_b=True)
        shares = tf.cast(_masked_softmax(logits, mask), self.fprop_dtype)
        shares = self.dropout.FProp(theta.dropout, shares)
        found = tf.transpose(tf.matmul(shares, memory.value), [0, 2, 1, 3])
        joined = tf.reshape(found, [-1, inputs.shape[1], p.num_heads * p.dim_per_head])
        return self.output.FProp(theta.output, joined)

    def InitStates(self, batch_size: int, max_length: int) -> NestedMap:
        """Room for keys and values, `[B, N, S, H]` each, of S = `max_length` steps."""
        p = self.params
        zeros = tf.zeros(
            [batch_size, p.num_heads, max_length, p.dim_per_head], self.fprop_dtype
        )
        return NestedMap(key=zeros, value=zeros)

    def ExtendStep(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        states: NestedMap,
        time_step: tf.Tensor,
    ) -> tuple[tf.Tensor, NestedMap]:
        """One step of causal self-attention, after those that are in the states.

        Args:
            theta: weights.
            inputs: `[B, 1, D]`, at this step.
            states: as of `InitStates` or of the step before.
            time_step: [] int32, from 0.

        Returns:
            `[B, 1, D]`, and the states with this step's key and value.

        Raises:
            tf.errors.InvalidArgumentError: if the states have no room for this step.
        """
        max_length = states.key.shape[2]
        tf.debugging.assert_less(
            time_step,
            max_length,
            f"Steps must be fewer than the max_length that {self.path} has room for.",
        )
        places = tf.range(max_length)
        now = tf.equal(places, time_step)[:, tf.newaxis]
        new = self.KeysValues(theta, inputs)
        states = NestedMap(
            key=tf.where(now, new.key, states.key),
            value=tf.where(now, new.value, states.value),
        )
        return self.Attend(theta, inputs, states, places <= time_step), states

    def _heads(self, x: tf.Tensor) -> tf.Tensor:
        """`[B, T, N·H]` -> `[B, N, T, H]`."""
        p = self.params
        x = tf.reshape(x, [-1, x.shape[1], p.num_heads, p.dim_per_head])
        return tf.transpose(x, [0, 2, 1, 3])

    @classmethod
    def FPropMeta(
        cls,
        p: InstantiableParams,
        *shapes: tuple | None,
    ) -> NestedMap:
        """Four dense layers, two products of matrices for each head, the softmax."""
        inputs, memory, mask = (*shapes, None, None)[:3]
        assert inputs is not None
        memory = inputs if memory is None else memory
        logits = (inputs[0], p.num_heads, inputs[1], memory[1])
        joined = (*inputs[:2], p.num_heads * p.dim_per_head)
        flops = (4 * p.dim_per_head + _SOFTMAX_FLOPS) * math.prod(logits)
        if mask is not None:
            flops += math.prod(mask) + math.prod(logits)
        flops += elementwise_cost(logits, 0 if p.keep_prob == 1.0 else 3).flops
        for x in (inputs, memory, memory):
            flops += FCLayer.FPropMeta(_to_heads(p), x).flops
        meta = FCLayer.FPropMeta(_from_heads(p), joined)
        meta.flops += flops
        return meta


def _to_heads(p: InstantiableParams) -> InstantiableParams:
    return FCLayer.Params().Set(
        input_dim=p.dim,
        output_dim=p.num_heads * p.dim_per_head,
        has_bias=p.has_bias,
    )


def _from_heads(p: InstantiableParams) -> InstantiableParams:
    return FCLayer.Params().Set(
        input_dim=p.num_heads * p.dim_per_head,
        output_dim=p.dim,
        has_bias=p.has_bias,
    )


def _masked_softmax(logits: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Shares `[B, N, T, S]` of the keys, in float32 or wider; 0 where not seen."""
    wide = tf.float64 if logits.dtype == tf.float64 else tf.float32
    logits = tf.cast(logits, wide)
    if mask is not None:
        # Finite, so that a query which sees nothing has shares that are numbers.
        low = tf.constant(wide.min / 2, wide)
        logits += tf.where(mask, tf.zeros([], wide), low)
    return tf.nn.softmax(logits)
