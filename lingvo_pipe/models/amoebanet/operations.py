"""AmoebaNet's operations with F filters: ReLU, convolution without bias, batch norm."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import convolution
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.checks import check_param
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.dense import ActivationLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap

_BOTTLENECK = 4  # the windowed convolutions of 1x7_7x1 and 3x3 see F / 4 channels
IDENTITY = "none"

Size = tuple[int, int]  # rows, columns
Layers = list[InstantiableParams]


class Channels(NamedTuple):
    """An operation's input channels I, filters F, and params of its batch norms."""

    num_in: int
    num_filters: int
    norm_tpl: InstantiableParams


def operation(name: str, channels: Channels, stride: int = 1) -> InstantiableParams:
    """Returns params of an operation, which outputs `[B, H/stride, W/stride, F]`."""
    if name not in _OPERATIONS:
        expected = f"one of {sorted(_OPERATIONS)}"
        raise UserValueError(
            path="operation", expected=expected, got=name, names=_OPERATIONS
        )
    return SequentialLayer.Params().Set(sub=_OPERATIONS[name](channels, stride))


def conv_bn(channels: Channels) -> InstantiableParams:
    """Returns a 1x1 convolution and batch norm: `[B, H, W, I]` -> `[B, H, W, F]`."""
    return SequentialLayer.Params().Set(sub=_conv_and_norm(channels))


def _conv_and_norm(
    channels: Channels, window: Size = (1, 1), stride: Size = (1, 1)
) -> Layers:
    conv = convolution.Conv2DLayer.Params().Set(
        filter_shape=[*window, channels.num_in, channels.num_filters],
        filter_stride=list(stride),
    )
    return [conv, _norm(channels)]


def _norm(channels: Channels) -> InstantiableParams:
    return channels.norm_tpl.Copy().Set(dim=channels.num_filters)


def _conv_1x1(channels: Channels, stride: int = 1) -> Layers:
    return _chain(channels, [((1, 1), (stride, stride))])


def _none(channels: Channels, stride: int) -> Layers:
    if stride == 1 and channels.num_in == channels.num_filters:
        return []
    return _conv_1x1(channels, stride)


def _bottleneck(channels: Channels, middle: list[tuple[Size, Size]]) -> Layers:
    """Returns the layers of `middle`, with F / 4 channels, between 1x1 convolutions."""
    inner = channels.num_filters // _BOTTLENECK
    if inner < 1:
        return _chain(channels, middle)
    narrow = channels._replace(num_filters=inner)
    up = _conv_1x1(channels._replace(num_in=inner))
    return _chain(narrow, [((1, 1), (1, 1)), *middle]) + up


def _chain(channels: Channels, windows: list[tuple[Size, Size]]) -> Layers:
    """Returns a ReLU, a convolution and a norm for each (window, stride), in order."""
    layers: Layers = []
    for window, stride in windows:
        layers += [ActivationLayer.Params(), *_conv_and_norm(channels, window, stride)]
        channels = channels._replace(num_in=channels.num_filters)
    return layers


def _separable(window: int) -> Callable[[Channels, int], Layers]:
    def make(channels: Channels, stride: int) -> Layers:
        layers = []
        for num_in, conv_stride in (
            (channels.num_in, stride),
            (channels.num_filters, 1),
        ):
            conv = convolution.SeparableConv2DLayer.Params().Set(
                filter_shape=[window, window, num_in, channels.num_filters],
                filter_stride=[conv_stride, conv_stride],
            )
            layers += [ActivationLayer.Params(), conv, _norm(channels)]
        return layers

    return make


def _pool(pooling_type: str, window: int) -> Callable[[Channels, int], Layers]:
    def make(channels: Channels, stride: int) -> Layers:
        pool = convolution.PoolingLayer.Params().Set(
            pooling_type=pooling_type,
            window_shape=[window, window],
            window_stride=[stride, stride],
        )
        if channels.num_in == channels.num_filters:
            return [pool]
        return [pool, *_conv_and_norm(channels)]

    return make


_OPERATIONS: dict[str, Callable[[Channels, int], Layers]] = {
    IDENTITY: _none,
    "1x1": _conv_1x1,
    "3x3": lambda c, s: _bottleneck(c, [((3, 3), (s, s))]),
    "1x7_7x1": lambda c, s: _bottleneck(c, [((1, 7), (1, s)), ((7, 1), (s, 1))]),
    "separable_3x3_2": _separable(3),
    "separable_5x5_2": _separable(5),
    "separable_7x7_2": _separable(7),
    # Dilated by 2 in name only: the code of the published results did not dilate.
    "dil_2_separable_5x5_2": _separable(5),
    "avg_pool_3x3": _pool("AVG", 3),
    "max_pool_2x2": _pool("MAX", 2),
    "max_pool_3x3": _pool("MAX", 3),
}


class FactorizedReductionLayer(CompositeLayer):
    """A layer that halves the image. Even and odd pixels go to different filters."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_in", 0, "I.")
        p.Define("num_filters", 0, "F, at least 2; an odd filter goes to odd pixels.")
        p.Define("activation", "RELU", "Name of the activation of the inputs.")
        p.Define("norm_tpl", BatchNormLayer.Params(), "Params of the batch norm.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        conv, even = convolution.Conv2DLayer.Params(), p.num_filters // 2
        odd = p.num_filters - even
        return {
            "activate": ActivationLayer.Params().Set(activation=p.activation),
            "even": conv.Copy().Set(filter_shape=[1, 1, p.num_in, even]),
            "odd": conv.Copy().Set(filter_shape=[1, 1, p.num_in, odd]),
            "norm": p.norm_tpl.Copy().Set(dim=p.num_filters),
        }

    def CheckParams(self) -> None:
        hint = "A factorized reduction needs one for even and one for odd pixels."
        check_param(self, "num_filters", lambda x: x >= 2, "at least 2 filters", hint)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Maps `[B, H, W, I]` to `[B, ⌈H/2⌉, ⌈W/2⌉, F]`."""
        inputs = self.activate.FProp(theta.activate, inputs)
        shifted = tf.pad(inputs, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:]
        halves = [
            self.even.FProp(theta.even, inputs[:, ::2, ::2]),
            self.odd.FProp(theta.odd, shifted[:, ::2, ::2]),
        ]
        return self.norm.FProp(theta.norm, tf.concat(halves, -1))
