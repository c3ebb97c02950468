"""Layer normalisation (Ba et al., 1607.06450), in float32 whatever the layer's dtype.

Shapes: D channels.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.input_shape import check_channels
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap


class LayerNormLayer(BaseLayer):
    """gamma·(x - mean) / √(variance + epsilon) + beta, by each vector's own moments."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: dimension, and which weights there are."""
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("has_scale", True, "Whether there is gamma; else it is 1.")
        p.Define("has_bias", True, "Whether there is beta; else it is 0.")
        p.Define("epsilon", 1e-6, "Added to the variance.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        if not p.epsilon > 0.0:
            raise ValueError(f"epsilon must be positive; {self.path} has {p.epsilon}.")
        if p.has_scale:
            self.CreateVariable(
                "gamma", WeightParams([p.dim], WeightInit.Constant(1.0))
            )
        if p.has_bias:
            self.CreateVariable("beta", WeightParams([p.dim], WeightInit.Constant(0.0)))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[..., D]` -> `[..., D]`."""
        p = self.params
        check_channels(inputs, p.dim, self.path)
        wide = tf.float64 if self.fprop_dtype == tf.float64 else tf.float32
        x = tf.cast(inputs, wide)
        x -= tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        x *= tf.math.rsqrt(variance + p.epsilon)
        if p.has_scale:
            x *= tf.cast(theta.gamma, wide)
        if p.has_bias:
            x += tf.cast(theta.beta, wide)
        return tf.cast(x, self.fprop_dtype)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Two means, difference, square and sum an element; two more a vector."""
        (shape,) = shapes
        flops = (4 + p.has_bias) * math.prod(shape) + 2 * math.prod(shape[:-1])
        return NestedMap(flops=flops, out_shapes=(tuple(shape),))
