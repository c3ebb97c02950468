"""Halving an image without losing every other pixel.

Shapes: images are `[B, H, W, I]`; F filters.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import GetFn
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
from lingvo_pipe.nested_map import NestedMap


class FactorizedReductionLayer(BaseLayer):
    """Even pixels to one half of the filters, odd ones to the other; batch norm."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: channels in and out."""
        p = super().Params()
        p.Define("num_in", 0, "I.")
        p.Define("num_filters", 0, "F, at least 2; an odd filter goes to odd pixels.")
        p.Define("activation", "RELU", "What comes first, by name.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Of the batch norm.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        _check_filters(p, self.path)
        self._activate = GetFn(p.activation)
        even, odd, norm = _parts(p)
        self.CreateChild("even", even)
        self.CreateChild("odd", odd)
        self.CreateChild("norm", norm)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, I]` -> `[B, ⌈H/2⌉, ⌈W/2⌉, F]`."""
        inputs = self._activate(tf.cast(inputs, self.fprop_dtype))
        shifted = tf.pad(inputs, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:]
        halves = [
            self.even.FProp(theta.even, inputs[:, ::2, ::2]),
            self.odd.FProp(theta.odd, shifted[:, ::2, ::2]),
        ]
        return self.norm.FProp(theta.norm, tf.concat(halves, -1))

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Activation, two convolutions of a quarter of the pixels, batch norm."""
        even, odd, norm = _parts(p)
        batch, height, width, channels = shapes[0]
        half = (batch, -(-height // 2), -(-width // 2), channels)
        norm_meta = norm.cls.FPropMeta(norm, (*half[:3], p.num_filters))
        activation = int(p.activation != "NONE")
        norm_meta.flops += elementwise_cost(shapes[0], activation).flops
        norm_meta.flops += sum(c.cls.FPropMeta(c, half).flops for c in (even, odd))
        return norm_meta


def _check_filters(p: InstantiableParams, where: str) -> None:
    if p.num_filters < 2:
        raise ValueError(
            "A factorized reduction needs a filter for even pixels and one for odd "
            f"ones; {where} has num_filters={p.num_filters}. Use a wider network."
        )


def _parts(
    p: InstantiableParams,
) -> tuple[InstantiableParams, InstantiableParams, InstantiableParams]:
    """Params of the convolutions of even and of odd pixels, and of the batch norm."""
    even = p.num_filters // 2
    convs = [
        Conv2DLayer.Params().Set(filter_shape=[1, 1, p.num_in, num_out])
        for num_out in (even, p.num_filters - even)
    ]
    return convs[0], convs[1], p.norm_tpl.Copy().Set(dim=p.num_filters)
