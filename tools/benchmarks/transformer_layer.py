"""The Transformer layer of the benchmark, for lingvo_pipe.

Shapes: b examples of T tokens in a micro-batch; D channels; H heads.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap
from tools.benchmarks.workload import NORM_EPSILON, Workload


class TransformerLayer(BaseLayer):
    """Attention and a feed-forward part, each behind a norm and around a residual."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the sizes."""
        p = super().Params()
        p.Define("workload", None, "The model it is part of.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._workload: Workload = self.params.workload
        for name, shape in self._workload.weight_shapes().items():
            # The benchmark assigns the values.
            self.CreateVariable(name, WeightParams(shape, WeightInit.Constant()))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        """`[b, T, D]` to the same."""
        x += self._attention(theta, _norm(x, theta.attention_norm))
        hidden = _project(_norm(x, theta.feed_forward_norm), theta.expand)
        return x + _project(tf.nn.relu(hidden), theta.contract)

    def _attention(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        num_examples, length, dim = x.shape
        num_heads = self._workload.num_heads
        parts = tf.reshape(
            _project(x, theta.query_key_value),
            [num_examples, length, 3, num_heads, dim // num_heads],
        )
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        logits = tf.matmul(query, key, transpose_b=True) * (dim // num_heads) ** -0.5
        attended = tf.matmul(tf.nn.softmax(logits), value)  # [b, H, T, D / H]
        joined = tf.reshape(tf.transpose(attended, [0, 2, 1, 3]), x.shape)
        return _project(joined, theta.attention_output)


def _norm(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + NORM_EPSILON) * factor


def _project(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Multiplies `[b, T, I]` with `[I, O]`: one product, not one an example."""
    num_examples, length, _ = x.shape
    flat = tf.reshape(x, [num_examples * length, x.shape[-1]])
    return tf.reshape(tf.matmul(flat, weight), [num_examples, length, weight.shape[-1]])
