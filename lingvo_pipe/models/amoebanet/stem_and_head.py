"""AmoebaNet's stem, head and auxiliary head, for images `[B, H, W, C]`, N classes."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import convolution
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap

_AUXILIARY_WIDTHS = (128, 768)  # of the two convolutions, before scaling


class StemLayer(CompositeLayer):
    """A 3x3 convolution and batch norm, whose outputs are the first cell's inputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_in", 3, "Channels of the image.")
        p.Define("num_filters", 32, "Channels of the features.")
        p.Define("stride", 2, "2 pads VALID, as for ImageNet; 1 pads SAME.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Params of the batch norm.")
        counts = "True to count the cells from here on, for drop-path."
        p.Define("counts_cells", False, counts)
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        conv = convolution.Conv2DLayer.Params().Set(
            filter_shape=[3, 3, p.num_in, p.num_filters],
            filter_stride=[p.stride, p.stride],
            padding="SAME" if p.stride == 1 else "VALID",
        )
        return {"conv": conv, "norm": p.norm_tpl.Copy().Set(dim=p.num_filters)}

    def FProp(self, theta: NestedMap, image: tf.Tensor, *passed_on: Any) -> tuple:
        """Maps `[B, H, W, C]` to `[B, H', W', C']`, None, and `[B]` zeros or None."""
        features = self.conv.FProp(theta.conv, image)
        num_cells = None
        if self.params.counts_cells:
            # A number per example, since a pipeline splits all inputs by examples.
            num_cells = tf.zeros_like(image[:, 0, 0, 0], tf.int64)
        return self.norm.FProp(theta.norm, features), None, num_cells, *passed_on


class HeadLayer(CompositeLayer):
    """ReLU, mean over the image, dropout and a fully connected layer, to logits."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_in", 0, "Channels of the last cell's output.")
        p.Define("num_classes", 0, "N.")
        p.Define("keep_prob", 0.5, "Fraction that dropout keeps.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        return {
            "relu": ActivationLayer.Params(),
            "pool": convolution.GlobalAveragePoolingLayer.Params(),
            "dropout": DropoutLayer.Params().Set(keep_prob=p.keep_prob),
            "dense": FCLayer.Params().Set(input_dim=p.num_in, output_dim=p.num_classes),
        }

    def FProp(self, theta: NestedMap, last: tf.Tensor, *unused: Any) -> tf.Tensor:
        """Maps `[B, H, W, C]`, the first output of a cell, to `[B, N]`."""
        return super().FProp(theta, last)


class AuxiliaryHeadLayer(CompositeLayer):
    """A classifier of a cell's output. Its loss trains this cell and earlier cells."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_in", 0, "Channels of the cell's output.")
        p.Define("image_shape", [0, 0], "H and W of the cell's output.")
        p.Define("num_classes", 0, "N.")
        p.Define("scale", 0.4, "s: the convolutions have int(128 s) and int(768 s).")
        p.Define("pool_window", 5, "Rows and columns of the pool's window.")
        p.Define("pool_stride", 3, "Rows and columns from window to window.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Params of the batch norms.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        widths = [int(p.scale * width) for width in _AUXILIARY_WIDTHS]
        window, stride = p.pool_window, p.pool_stride
        image = [
            convolution.out_size(n, window, stride, "VALID") for n in p.image_shape
        ]
        relu = ActivationLayer.Params().Set(activation="RELU")
        pool = convolution.PoolingLayer.Params().Set(
            pooling_type="AVG",
            window_shape=[window, window],
            window_stride=[stride, stride],
            padding="VALID",
        )
        layers, num_in = [relu, pool], p.num_in
        for shape, num_filters in zip(([1, 1], image), widths, strict=True):
            conv = convolution.Conv2DLayer.Params().Set(
                filter_shape=[*shape, num_in, num_filters], padding="VALID"
            )
            layers += [conv, p.norm_tpl.Copy().Set(dim=num_filters), relu.Copy()]
            num_in = num_filters
        return {
            "body": SequentialLayer.Params().Set(sub=layers),
            "dense": FCLayer.Params().Set(input_dim=num_in, output_dim=p.num_classes),
        }

    def FProp(self, theta: NestedMap, image: tf.Tensor) -> tf.Tensor:
        """Maps `[B, H, W, C]` to `[B, N]`."""
        features = self.body.FProp(theta.body, image)
        features = tf.reshape(features, [-1, features.shape[-1]])
        return self.dense.FProp(theta.dense, features)
