"""AmoebaNet's first and last layer.

Shapes: images are `[B, H, W, C]`; N classes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_cost import cost_of_sequence, elementwise_cost
from lingvo_pipe.layers.pooling import GlobalAveragePoolingLayer
from lingvo_pipe.nested_map import NestedMap


class StemLayer(BaseLayer):
    """3x3 convolution and batch norm, no ReLU: image -> (features, None)."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: channels and stride."""
        p = super().Params()
        p.Define("num_in", 3, "Channels of the image.")
        p.Define("num_filters", 32, "Channels of the features.")
        p.Define("stride", 2, "2 pads VALID, as for ImageNet; 1 pads SAME.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Of the batch norm.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        conv, norm = _stem_parts(self.params)
        self.CreateChild("conv", conv)
        self.CreateChild("norm", norm)

    def FProp(self, theta: NestedMap, image: tf.Tensor) -> tuple[tf.Tensor, None]:
        """`[B, H, W, C]` -> `[B, H', W', C']`, None: no output came before."""
        features = self.conv.FProp(theta.conv, image)
        return self.norm.FProp(theta.norm, features), None

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Convolution and batch norm."""
        meta = cost_of_sequence(_stem_parts(p), *shapes)
        return NestedMap(flops=meta.flops, out_shapes=(*meta.out_shapes, None))


class HeadLayer(BaseLayer):
    """ReLU, mean over the image, dropout, fully connected: -> logits."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: sizes, and how much dropout keeps."""
        p = super().Params()
        p.Define("num_in", 0, "Channels of the last cell's output.")
        p.Define("num_classes", 0, "N.")
        p.Define("keep_prob", 0.5, "Of the dropout.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        pool, dropout, dense = _head_parts(self.params)
        self.CreateChild("pool", pool)
        self.CreateChild("dropout", dropout)
        self.CreateChild("dense", dense)

    def FProp(self, theta: NestedMap, last: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, C]` and the output before, not used -> `[B, N]`."""
        features = self.pool.FProp(theta.pool, tf.nn.relu(last))
        features = self.dropout.FProp(theta.dropout, features)
        return self.dense.FProp(theta.dense, features)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """The ReLU and the layers."""
        last, _ = shapes
        meta = cost_of_sequence(_head_parts(p), last)
        meta.flops += elementwise_cost(last).flops
        return meta


def _stem_parts(p: InstantiableParams) -> list[InstantiableParams]:
    """Params of the convolution and the batch norm."""
    conv = Conv2DLayer.Params().Set(
        filter_shape=[3, 3, p.num_in, p.num_filters],
        filter_stride=[p.stride, p.stride],
        padding="SAME" if p.stride == 1 else "VALID",
    )
    return [conv, p.norm_tpl.Copy().Set(dim=p.num_filters)]


def _head_parts(p: InstantiableParams) -> list[InstantiableParams]:
    """Params of the pool, the dropout and the fully connected layer."""
    return [
        GlobalAveragePoolingLayer.Params(),
        DropoutLayer.Params().Set(keep_prob=p.keep_prob),
        FCLayer.Params().Set(input_dim=p.num_in, output_dim=p.num_classes),
    ]
