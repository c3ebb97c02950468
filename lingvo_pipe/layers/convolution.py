"""Two-dimensional convolutions, and pooling, over images.

Shapes: B examples, H height, W width, I input channels, O output channels, M depth
multiplier. Images are `[B, H, W, I]`.
"""

import math
from typing import ClassVar

import tensorflow as tf

from lingvo_pipe import hyperparams
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.graph_gradient import Gradient, custom_gradient
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import (
    check_channels,
    check_choice,
    check_counts,
    check_param,
    check_sizes,
)
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.slice_layers import JoinedSlice, SliceLayer
from lingvo_pipe.nested_map import NestedMap

_PADDINGS = ("SAME", "VALID")


def _max_pool(
    images: tf.Tensor, window: list[int], stride: list[int], padding: str
) -> tf.Tensor:
    """Returns the maximum of each window.

    In training the gradient pools again, so that no output is stashed for the backward
    pass. On CPUs a gradient is eight times faster if its function also contains the
    pooling, because oneDNN then provides the maxima's positions.
    """
    context = forward_context.current_context()
    if context.do_eval:
        return tf.nn.max_pool2d(images, window, stride, padding)
    options = {"ksize": [1, *window, 1], "strides": [1, *stride, 1], "padding": padding}

    def pool(x: tf.Tensor) -> tuple[list[tf.Tensor], Gradient]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            again = tf.raw_ops.MaxPool(input=x, **options)
            return [
                tf.raw_ops.MaxPoolGrad(
                    orig_input=x, orig_output=again, grad=upstream, **options
                )
            ]

        return [tf.nn.max_pool2d(x, window, stride, padding)], gradient

    # Outside of pipelines: TensorFlow's form, which a SavedModel can hold.
    in_pipeline = context.num_rows is not None
    (pooled,) = (custom_gradient if in_pipeline else tf.custom_gradient)(pool)(images)
    return pooled


_POOLS = {"AVG": tf.nn.avg_pool2d, "MAX": _max_pool}


def out_size(size: int, window: int, stride: int, padding: str) -> int:
    """Returns the number of positions of a window along an axis of length `size`.

    Raises:
        ValueError: if a VALID window exceeds the size.
    """
    positions = -(-(size if padding == "SAME" else size - window + 1) // stride)
    if positions < 1:
        raise UserValueError(
            path="VALID window",
            expected=f"at most the image's size, {size}",
            got=window,
            hint="Set padding='SAME', or use larger images.",
        )
    return positions


def _define_window(p: InstantiableParams, filter_shape: str) -> None:
    p.Define("filter_shape", [0, 0, 0, 0], filter_shape)
    p.Define("filter_stride", [1, 1], "Rows and columns from window to window.")
    p.Define("dilation_rate", [1, 1], "Rows and columns from tap to tap.")
    p.Define("padding", "SAME", "SAME or VALID, as TensorFlow defines them.")
    p.Define("bias", False, "True to add a bias for each output channel.")


def _check_window(layer: BaseLayer) -> None:
    check_choice(layer.params.padding, _PADDINGS, f"{layer.path}.padding")
    check_sizes(layer, 2, "filter_stride", "dilation_rate")


class _ConvolutionLayer(BaseLayer):
    _FILTER_SHAPE: str
    # Number of the weight's first dimensions that a sum runs over.
    _NUM_SUMMED: int

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        _define_window(p, cls._FILTER_SHAPE)
        return p

    def _check_params(self) -> None:
        p = self.params
        _check_window(self)
        if max(p.filter_stride) > 1 and max(p.dilation_rate) > 1:
            raise UserValueError(
                path=f"{self.path}.dilation_rate",
                expected=f"[1, 1] beside filter_stride={list(p.filter_stride)}",
                got=list(p.dilation_rate),
                hint="Use two layers.",
            )

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._check_params()
        check_sizes(self, 4, "filter_shape")
        p = self.params
        self.CreateVariable("w", self._weight())
        if p.bias:
            num_out = math.prod(p.filter_shape[self._NUM_SUMMED :])
            self.CreateVariable("b", WeightParams([num_out], WeightInit.Constant(0.0)))

    def _weight(self) -> hyperparams.Params:
        return WeightParams(self.params.filter_shape)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        check_channels(inputs, self.params.filter_shape[2], self._path)
        outputs = self._convolve(tf.cast(inputs, self.fprop_dtype), theta.w)
        return outputs + theta.b if self.params.bias else outputs

    def _convolve(self, images: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError(f"{type(self).__name__}._convolve")


class Conv2DLayer(_ConvolutionLayer):
    """An ordinary convolution over all channels: `[B, H, W, I]` -> `[B, H', W', O]`."""

    _FILTER_SHAPE = "Height and width of the window, I, O."
    _NUM_SUMMED = 3

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has some output channels."""
        return _Conv2DSlice

    def _convolve(self, images: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        # Unlike tf.nn.conv2d, it has a dilated gradient on the CPU in every dtype.
        return tf.nn.convolution(
            images,
            weight,
            strides=list(self.params.filter_stride),
            padding=self.params.padding,
            dilations=list(self.params.dilation_rate),
        )


class DepthwiseConv2DLayer(_ConvolutionLayer):
    """A convolution of each channel by itself: `[B, H, W, I]` -> `[B, H', W', I·M]`.

    The strides must be equal in both directions, as TensorFlow requires.
    """

    _FILTER_SHAPE = "Height and width of the window, I, M."
    _NUM_SUMMED = 2

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has some input channels."""
        return _DepthwiseConv2DSlice

    def _check_params(self) -> None:
        super()._check_params()
        check_param(self, "filter_stride", lambda x: x[0] == x[1], "equal strides")

    def _weight(self) -> hyperparams.Params:
        height, width, _, multiplier = self.params.filter_shape
        fans = height * width, height * width * multiplier  # Channels are independent.
        return WeightParams(self.params.filter_shape, fans=fans)

    def _convolve(self, images: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return tf.nn.depthwise_conv2d(
            images,
            weight,
            strides=[1, *self.params.filter_stride, 1],
            padding=self.params.padding,
            dilations=list(self.params.dilation_rate),
        )


class SeparableConv2DLayer(CompositeLayer):
    """A depthwise and then a 1x1 convolution: `[B, H, W, I]` -> `[B, H', W', O]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        _define_window(p, "Height and width of the window, I, O.")
        p.Define("depth_multiplier", 1, "M of the depthwise convolution.")
        return p

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice takes some input channels."""
        return _SeparableConv2DSlice

    def CheckParams(self) -> None:
        _check_window(self)
        check_sizes(self, 4, "filter_shape")
        check_counts(self, "depth_multiplier")

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
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
        return {"depthwise": depthwise, "pointwise": pointwise}


class _Conv2DSlice(JoinedSlice, Conv2DLayer):
    UNITS = "filter_shape[3]"
    AXES: ClassVar = {"w": 3, "b": 0}


class _DepthwiseConv2DSlice(JoinedSlice, DepthwiseConv2DLayer):
    UNITS = "filter_shape[2]"
    AXES: ClassVar = {"w": 2, "b": 0}

    @classmethod
    def UnitSize(cls, p: InstantiableParams, path: str) -> int:
        return p.filter_shape[3] if path == "b" else 1

    def Own(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        return super().Own(theta, self.OwnUnits(inputs))


class _SeparableConv2DSlice(SliceLayer, SeparableConv2DLayer):
    UNITS = "filter_shape[2]"
    AXES: ClassVar = {"depthwise/w": 2, "pointwise/w": 2}

    @classmethod
    def UnitSize(cls, p: InstantiableParams, path: str) -> int:
        return p.depth_multiplier if path == "pointwise/w" else 1

    @classmethod
    def Trim(cls, p: InstantiableParams) -> InstantiableParams:
        return p.Set(bias=p.bias and cls.IsLast(p))

    def Own(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        return super().Own(theta, self.OwnUnits(inputs))


class PoolingLayer(BaseLayer):
    """Pooling: the maximum or the mean of each window. Padding does not count."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("window_shape", [1, 1], "Height and width.")
        p.Define("window_stride", [1, 1], "Rows and columns from window to window.")
        p.Define("pooling_type", "MAX", "MAX or AVG.")
        p.Define("padding", "SAME", "SAME or VALID, as TensorFlow defines them.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        check_choice(p.padding, _PADDINGS, f"{self.path}.padding")
        check_sizes(self, 2, "window_shape", "window_stride")
        check_choice(p.pooling_type, sorted(_POOLS), f"{self.path}.pooling_type")

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[B, H, W, I]` to `[B, H', W', I]`."""
        p = self.params
        return _POOLS[p.pooling_type](
            tf.cast(inputs, self.fprop_dtype),
            list(p.window_shape),
            list(p.window_stride),
            p.padding,
        )


class GlobalAveragePoolingLayer(BaseLayer):
    """The mean over an image: `[B, H, W, I]` -> `[B, I]`."""

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.cast(inputs, self.fprop_dtype), [1, 2])
