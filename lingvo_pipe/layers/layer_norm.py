"""Layer normalization (Ba et al., 1607.06450) of D channels, in float32 or wider."""

import tensorflow as tf

from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels, check_positive
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.nested_map import NestedMap


class LayerNormLayer(BaseLayer):
    """Layer norm of each vector: gamma·(x - mean) / √(variance + epsilon) + beta."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("has_scale", True, "True for a weight gamma; else gamma is 1.")
        p.Define("has_bias", True, "True for a weight beta; else beta is 0.")
        p.Define("epsilon", 1e-6, "Added to the variance.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_positive(self, "epsilon")
        ones, zeros = WeightInit.Constant(1.0), WeightInit.Constant(0.0)
        if p.has_scale:
            self.CreateVariable("gamma", WeightParams([p.dim], ones))
        if p.has_bias:
            self.CreateVariable("beta", WeightParams([p.dim], zeros))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[..., D]` to `[..., D]`."""
        p = self.params
        check_channels(inputs, p.dim, self._path)
        wide = wide_dtype(self.fprop_dtype)
        x = tf.cast(inputs, wide)
        x -= tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        x *= tf.math.rsqrt(variance + p.epsilon)
        if p.has_scale:
            x *= tf.cast(theta.gamma, wide)
        if p.has_bias:
            x += tf.cast(theta.beta, wide)
        return tf.cast(x, self.fprop_dtype)
