"""Fully connected layers.

Shapes: I input channels, O output channels.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import GetFn
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.input_shape import check_channels
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap


class FCLayer(BaseLayer):
    """activation(x·w + b): `[..., I]` -> `[..., O]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: dimensions, bias and activation."""
        p = super().Params()
        p.Define("input_dim", 0, "I.")
        p.Define("output_dim", 0, "O.")
        p.Define("has_bias", True, "Whether to add b.")
        p.Define("activation", "NONE", "Name of the activation.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self._activate = GetFn(p.activation)
        self.CreateVariable("w", WeightParams([p.input_dim, p.output_dim]))
        if p.has_bias:
            self.CreateVariable(
                "b", WeightParams([p.output_dim], WeightInit.Constant())
            )

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[..., I]` -> `[..., O]`."""
        check_channels(inputs, self.params.input_dim, self.path)
        outputs = tf.tensordot(tf.cast(inputs, self.fprop_dtype), theta.w, 1)
        if self.params.has_bias:
            outputs += theta.b
        return self._activate(outputs)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """2·I for each output element, and 1 each for the bias and the activation."""
        (shape,) = shapes
        out_shape = (*shape[:-1], p.output_dim)
        flops_an_element = 2 * p.input_dim + p.has_bias + (p.activation != "NONE")
        return NestedMap(
            flops=flops_an_element * math.prod(out_shape), out_shapes=(out_shape,)
        )
