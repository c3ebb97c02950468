"""Two-dimensional convolutions.

Shapes: B examples, H height, W width, I input channels, O output channels, M depth
multiplier. Images are `[B, H, W, I]`.
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

_PADDINGS = ("SAME", "VALID")


def out_size(size: int, window: int, stride: int, padding: str) -> int:
    """Number of places of a window of `window` along `size`.

    Raises:
        ValueError: if there is none.
    """
    places = -(-(size if padding == "SAME" else size - window + 1) // stride)
    if places < 1:
        raise ValueError(
            f"A VALID window must fit into the image; one of {window} does not into "
            f"{size}. Set padding='SAME', or hand on larger images."
        )
    return places


def check_padding(padding: str, where: str) -> None:
    """Raises ValueError unless `padding` is one of TensorFlow's two."""
    if padding not in _PADDINGS:
        raise ValueError(
            f"padding must be one of {_PADDINGS}; {where} has {padding!r}."
        )


def _check_window(p: InstantiableParams, where: str) -> None:
    """Raises ValueError for what TensorFlow refuses late or computes wrongly."""
    check_padding(p.padding, where)
    if max(p.filter_stride) > 1 and max(p.dilation_rate) > 1:
        raise ValueError(
            "A convolution must have a stride or a dilation, not both; "
            f"{where} has filter_stride={list(p.filter_stride)} and "
            f"dilation_rate={list(p.dilation_rate)}. Use two layers."
        )


def _image_out_shape(
    p: InstantiableParams, shape: tuple, num_channels: int
) -> tuple[int, int, int, int]:
    batch, height, width, _ = shape
    dilation = p.dilation_rate
    window = [
        (n - 1) * d + 1 for n, d in zip(p.filter_shape[:2], dilation, strict=True)
    ]
    return (
        batch,
        out_size(height, window[0], p.filter_stride[0], p.padding),
        out_size(width, window[1], p.filter_stride[1], p.padding),
        num_channels,
    )


def _define_window(p: InstantiableParams, filter_shape: str) -> None:
    p.Define("filter_shape", [0, 0, 0, 0], filter_shape)
    p.Define("filter_stride", [1, 1], "Rows and columns from window to window.")
    p.Define("dilation_rate", [1, 1], "Rows and columns from tap to tap.")
    p.Define("padding", "SAME", "SAME or VALID, as TensorFlow means them.")
    p.Define("bias", False, "Whether to add a bias for each output channel.")


class Conv2DLayer(BaseLayer):
    """A convolution with a full window: `[B, H, W, I]` -> `[B, H', W', O]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the window, how it moves, and the bias."""
        p = super().Params()
        _define_window(p, "Height and width of the window, I, O.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        _check_window(p, self.path)
        self.CreateVariable("w", WeightParams(p.filter_shape))
        if p.bias:
            self.CreateVariable(
                "b", WeightParams(p.filter_shape[-1:], WeightInit.Constant())
            )

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, I]` -> `[B, H', W', O]`."""
        p = self.params
        check_channels(inputs, p.filter_shape[2], self.path)
        # Of TensorFlow's two, the one whose dilated gradient the CPU has in any dtype.
        outputs = tf.nn.convolution(
            tf.cast(inputs, self.fprop_dtype),
            theta.w,
            strides=list(p.filter_stride),
            padding=p.padding,
            dilations=list(p.dilation_rate),
        )
        return outputs + theta.b if p.bias else outputs

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """2·window·I for each output element, and 1 for the bias."""
        out_shape = _image_out_shape(p, shapes[0], p.filter_shape[3])
        flops = (2 * math.prod(p.filter_shape[:3]) + p.bias) * math.prod(out_shape)
        return NestedMap(flops=flops, out_shapes=(out_shape,))


class DepthwiseConv2DLayer(BaseLayer):
    """Each channel by filters of its own: `[B, H, W, I]` -> `[B, H', W', I·M]`.

    TensorFlow has depthwise convolutions with equal strides in both directions only.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the window, how it moves, and the bias."""
        p = super().Params()
        _define_window(p, "Height and width of the window, I, M.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        _check_window(p, self.path)
        if p.filter_stride[0] != p.filter_stride[1]:
            raise ValueError(
                "A depthwise convolution must have equal strides; "
                f"{self.path} has {p.filter_stride}. Set filter_stride."
            )
        window = p.filter_shape[0] * p.filter_shape[1]
        fans = (window, window * p.filter_shape[3])  # A channel never sees another.
        self.CreateVariable("w", WeightParams(p.filter_shape, fans=fans))
        if p.bias:
            channels = p.filter_shape[2] * p.filter_shape[3]
            self.CreateVariable("b", WeightParams([channels], WeightInit.Constant()))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, I]` -> `[B, H', W', I·M]`."""
        p = self.params
        check_channels(inputs, p.filter_shape[2], self.path)
        outputs = tf.nn.depthwise_conv2d(
            tf.cast(inputs, self.fprop_dtype),
            theta.w,
            strides=[1, *p.filter_stride, 1],
            padding=p.padding,
            dilations=list(p.dilation_rate),
        )
        return outputs + theta.b if p.bias else outputs

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """2·window for each output element, and 1 for the bias."""
        channels = p.filter_shape[2] * p.filter_shape[3]
        out_shape = _image_out_shape(p, shapes[0], channels)
        flops = (2 * math.prod(p.filter_shape[:2]) + p.bias) * math.prod(out_shape)
        return NestedMap(flops=flops, out_shapes=(out_shape,))


class SeparableConv2DLayer(BaseLayer):
    """A depthwise, then a 1x1 convolution: `[B, H, W, I]` -> `[B, H', W', O]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the window, how it moves, and the bias after the 1x1 convolution."""
        p = super().Params()
        _define_window(p, "Height and width of the window, I, O.")
        p.Define("depth_multiplier", 1, "M of the depthwise convolution.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        depthwise, pointwise = _separable_parts(self.params)
        self.CreateChild("depthwise", depthwise)
        self.CreateChild("pointwise", pointwise)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """`[B, H, W, I]` -> `[B, H', W', O]`."""
        outputs = self.depthwise.FProp(theta.depthwise, inputs)
        return self.pointwise.FProp(theta.pointwise, outputs)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """The two convolutions' cost."""
        depthwise, pointwise = _separable_parts(p)
        first = DepthwiseConv2DLayer.FPropMeta(depthwise, *shapes)
        second = Conv2DLayer.FPropMeta(pointwise, *first.out_shapes)
        second.flops += first.flops
        return second


def _separable_parts(
    p: InstantiableParams,
) -> tuple[InstantiableParams, InstantiableParams]:
    height, width, num_in, num_out = p.filter_shape
    depthwise = DepthwiseConv2DLayer.Params().Set(
        filter_shape=[height, width, num_in, p.depth_multiplier],
        filter_stride=list(p.filter_stride),
        dilation_rate=list(p.dilation_rate),
        padding=p.padding,
    )
    pointwise = Conv2DLayer.Params().Set(
        filter_shape=[1, 1, num_in * p.depth_multiplier, num_out], bias=p.bias
    )
    return depthwise, pointwise
