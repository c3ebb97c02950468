"""Halving an image without losing every other pixel.

Shapes: images are `[B, H, W, I]`; F filters.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.nested_map import NestedMap


class FactorizedReductionLayer(BaseLayer):
    """ReLU, then even pixels to one half of the filters, odd ones to the other."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: channels in and out."""
        p = super().Params()
        p.Define("num_in", 0, "I.")
        p.Define("num_filters", 0, "F, at least 2; an odd filter goes to odd pixels.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Of the batch norm.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        even = p.num_filters // 2
        for name, num_out in (("even", even), ("odd", p.num_filters - even)):
            conv = Conv2DLayer.Params().Set(filter_shape=[1, 1, p.num_in, num_out])
            self.CreateChild(name, conv)
        self.CreateChild("norm", p.norm_tpl.Copy().Set(dim=p.num_filters))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, I]` -> `[B, ⌈H/2⌉, ⌈W/2⌉, F]`."""
        inputs = tf.nn.relu(inputs)
        shifted = tf.pad(inputs, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:]
        halves = [
            self.even.FProp(theta.even, inputs[:, ::2, ::2]),
            self.odd.FProp(theta.odd, shifted[:, ::2, ::2]),
        ]
        return self.norm.FProp(theta.norm, tf.concat(halves, -1))
