"""Pooling over images.

Shapes: B examples, H height, W width, C channels. Images are `[B, H, W, C]`.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.convolution import check_padding, out_size
from lingvo_pipe.nested_map import NestedMap

_POOLS = {"MAX": tf.nn.max_pool2d, "AVG": tf.nn.avg_pool2d}


class PoolingLayer(BaseLayer):
    """Largest or mean value of a window; the mean leaves padding out."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the window and how it moves."""
        p = super().Params()
        p.Define("window_shape", [1, 1], "Height and width.")
        p.Define("window_stride", [1, 1], "Rows and columns from window to window.")
        p.Define("pooling_type", "MAX", "MAX or AVG.")
        p.Define("padding", "SAME", "SAME or VALID, as TensorFlow means them.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_padding(p.padding, self.path)
        if p.pooling_type not in _POOLS:
            raise ValueError(
                f"pooling_type must be one of {sorted(_POOLS)}; "
                f"{self.path} has {p.pooling_type!r}."
            )

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, C]` -> `[B, H', W', C]`."""
        p = self.params
        return _POOLS[p.pooling_type](
            tf.cast(inputs, self.fprop_dtype),
            list(p.window_shape),
            list(p.window_stride),
            p.padding,
        )

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """One operation for each element of each window."""
        batch, height, width, channels = shapes[0]
        out_shape = (
            batch,
            out_size(height, p.window_shape[0], p.window_stride[0], p.padding),
            out_size(width, p.window_shape[1], p.window_stride[1], p.padding),
            channels,
        )
        flops = math.prod(p.window_shape) * math.prod(out_shape)
        return NestedMap(flops=flops, out_shapes=(out_shape,))


class GlobalAveragePoolingLayer(BaseLayer):
    """The mean over an image: `[B, H, W, C]` -> `[B, C]`."""

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, C]` -> `[B, C]`."""
        return tf.reduce_mean(tf.cast(inputs, self.fprop_dtype), [1, 2])

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """One operation for each input element."""
        batch, _, _, channels = shapes[0]
        return NestedMap(flops=math.prod(shapes[0]), out_shapes=((batch, channels),))
