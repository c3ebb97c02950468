"""AmoebaNet's operations, by name.

No convolution has a bias and each is followed by batch normalisation; what comes before
is a ReLU. Pools have neither.

Shapes: images are `[B, H, W, I]`; F filters of the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.layers.activation import ActivationLayer
from lingvo_pipe.layers.convolution import Conv2DLayer, SeparableConv2DLayer
from lingvo_pipe.layers.pooling import PoolingLayer
from lingvo_pipe.layers.sequential import SequentialLayer

_BOTTLENECK = 4  # the windowed convolutions of 1x7_7x1 and 3x3 see F / 4 channels
IDENTITY = "none"

Size = tuple[int, int]  # rows, columns
Layers = list[InstantiableParams]


class Channels(NamedTuple):
    """What an operation is given beside its name and stride.

    Attributes:
        num_in: I.
        num_filters: F.
        norm_tpl: params of the batch norms, but for their dimension.
    """

    num_in: int
    num_filters: int
    norm_tpl: InstantiableParams


def operation(name: str, channels: Channels, stride: int) -> InstantiableParams:
    """Params of an operation `[B, H, W, I]` -> `[B, H/stride, W/stride, F]`.

    Args:
        name: as in a genotype.
        channels: what goes in and comes out.
        stride: 1 or 2, in both directions.

    Raises:
        ValueError: if there is no operation of that name.
    """
    if name not in _OPERATIONS:
        raise ValueError(
            f"A genotype's operation must be one of {sorted(_OPERATIONS)}; "
            f"got {name!r}.{did_you_mean(name, _OPERATIONS)}"
        )
    return _sequence(_OPERATIONS[name](channels, stride))


def relu_conv_bn(channels: Channels) -> InstantiableParams:
    """ReLU, 1x1 convolution, batch norm: `[B, H, W, I]` -> `[B, H, W, F]`."""
    return _sequence(_conv_1x1(channels, 1))


def conv_bn(channels: Channels) -> InstantiableParams:
    """1x1 convolution, batch norm: `[B, H, W, I]` -> `[B, H, W, F]`."""
    return _sequence(_conv_and_norm(channels))


def _sequence(layers: Layers) -> InstantiableParams:
    return SequentialLayer.Params().Set(sub=layers)


def _conv_and_norm(
    channels: Channels, window: Size = (1, 1), stride: Size = (1, 1)
) -> Layers:
    conv = Conv2DLayer.Params().Set(
        filter_shape=[*window, channels.num_in, channels.num_filters],
        filter_stride=list(stride),
    )
    return [conv, _norm(channels)]


def _relu_conv_norm(
    channels: Channels, window: Size = (1, 1), stride: Size = (1, 1)
) -> Layers:
    return [_relu(), *_conv_and_norm(channels, window, stride)]


def _relu() -> InstantiableParams:
    return ActivationLayer.Params().Set(activation="RELU")


def _norm(channels: Channels) -> InstantiableParams:
    return channels.norm_tpl.Copy().Set(dim=channels.num_filters)


def _conv_1x1(channels: Channels, stride: int) -> Layers:
    return _relu_conv_norm(channels, stride=(stride, stride))


def _none(channels: Channels, stride: int) -> Layers:
    if stride == 1 and channels.num_in == channels.num_filters:
        return []
    return _conv_1x1(channels, stride)


def _conv_3x3(channels: Channels, stride: int) -> Layers:
    return _bottleneck(channels, [((3, 3), (stride, stride))])


def _conv_1x7_7x1(channels: Channels, stride: int) -> Layers:
    return _bottleneck(channels, [((1, 7), (1, stride)), ((7, 1), (stride, 1))])


def _bottleneck(channels: Channels, middle: list[tuple[Size, Size]]) -> Layers:
    """1x1 down, the (window, stride) convolutions in the middle, 1x1 up.

    Of fewer than four filters there is no fourth: the middle stands alone.
    """
    inner = channels.num_filters // _BOTTLENECK
    if inner < 1:
        return _chain(channels, middle)
    narrow = channels._replace(num_filters=inner)
    down = _relu_conv_norm(narrow)
    up = _relu_conv_norm(channels._replace(num_in=inner))
    return [*down, *_chain(narrow._replace(num_in=inner), middle), *up]


def _chain(channels: Channels, windows: list[tuple[Size, Size]]) -> Layers:
    """Convolutions in turn, of which the first takes the channels that come in."""
    layers: Layers = []
    for window, stride in windows:
        layers += _relu_conv_norm(channels, window, stride)
        channels = channels._replace(num_in=channels.num_filters)
    return layers


def _separable(window: int) -> Callable[[Channels, int], Layers]:
    """Two separable convolutions, the first of which has the stride."""

    def make(channels: Channels, stride: int) -> Layers:
        layers = []
        for num_in, each in ((channels.num_in, stride), (channels.num_filters, 1)):
            conv = SeparableConv2DLayer.Params().Set(
                filter_shape=[window, window, num_in, channels.num_filters],
                filter_stride=[each, each],
            )
            layers += [_relu(), conv, _norm(channels)]
        return layers

    return make


def _pool(pooling_type: str, window: int) -> Callable[[Channels, int], Layers]:
    def make(channels: Channels, stride: int) -> Layers:
        pool = PoolingLayer.Params().Set(
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
    "3x3": _conv_3x3,
    "1x7_7x1": _conv_1x7_7x1,
    "separable_3x3_2": _separable(3),
    "separable_5x5_2": _separable(5),
    "separable_7x7_2": _separable(7),
    # Its name says dilated by 2; the code that reached the published results was not.
    "dil_2_separable_5x5_2": _separable(5),
    "avg_pool_3x3": _pool("AVG", 3),
    "max_pool_2x2": _pool("MAX", 2),
    "max_pool_3x3": _pool("MAX", 3),
}
