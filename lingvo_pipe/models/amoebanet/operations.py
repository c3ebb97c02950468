"""AmoebaNet's operations, by name.

No convolution has a bias and each is followed by batch normalisation; what comes before
is a ReLU. Pools have neither.

Shapes: images are `[B, H, W, I]`; F filters of the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import ActivationLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.pooling import PoolingLayer
from lingvo_pipe.layers.sequential import SequentialLayer

_BOTTLENECK = 4  # the windowed convolutions of 1x7_7x1 and 3x3 see F / 4 channels


def _sequence(sub: Sequence[InstantiableParams]) -> InstantiableParams:
    return SequentialLayer.Params().Set(sub=list(sub))


def _relu() -> InstantiableParams:
    return ActivationLayer.Params().Set(activation="RELU")


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


def _conv_bn(
    channels: Channels, window: tuple[int, int], stride: tuple[int, int]
) -> list[InstantiableParams]:
    conv = Conv2DLayer.Params().Set(
        filter_shape=[*window, channels.num_in, channels.num_filters],
        filter_stride=list(stride),
    )
    return [_relu(), conv, channels.norm_tpl.Copy().Set(dim=channels.num_filters)]


def relu_conv_bn(channels: Channels, stride: int = 1) -> InstantiableParams:
    """ReLU, 1x1 convolution, batch norm: `[B, H, W, I]` -> `[B, H', W', F]`."""
    return _sequence(_conv_bn(channels, (1, 1), (stride, stride)))


def _none(channels: Channels, stride: int) -> InstantiableParams:
    if stride == 1 and channels.num_in == channels.num_filters:
        return _sequence([])
    return relu_conv_bn(channels, stride)


def _bottleneck(
    channels: Channels, middle: list[tuple[tuple[int, int], tuple[int, int]]]
) -> InstantiableParams:
    """1x1 down, the (window, stride) convolutions in the middle, 1x1 up."""
    inner = channels.num_filters // _BOTTLENECK
    if inner < 1:
        raise ValueError(
            f"A cell with 3x3 or 1x7_7x1 must have at least {_BOTTLENECK} filters; got "
            f"{channels.num_filters}. Use a wider network."
        )
    one = (1, 1)
    layers = _conv_bn(channels._replace(num_filters=inner), one, one)
    for window, stride in middle:
        narrow = channels._replace(num_in=inner, num_filters=inner)
        layers += _conv_bn(narrow, window, stride)
    return _sequence(layers + _conv_bn(channels._replace(num_in=inner), one, one))


def _conv_3x3(channels: Channels, stride: int) -> InstantiableParams:
    return _bottleneck(channels, [((3, 3), (stride, stride))])


def _conv_1x7_7x1(channels: Channels, stride: int) -> InstantiableParams:
    return _bottleneck(channels, [((1, 7), (1, stride)), ((7, 1), (stride, 1))])


def _pool(
    pooling_type: str, window: int
) -> Callable[[Channels, int], InstantiableParams]:
    def make(channels: Channels, stride: int) -> InstantiableParams:
        pool = PoolingLayer.Params().Set(
            pooling_type=pooling_type,
            window_shape=[window, window],
            window_stride=[stride, stride],
        )
        if channels.num_in == channels.num_filters:
            return _sequence([pool])
        _, conv, norm = _conv_bn(channels, (1, 1), (1, 1))
        return _sequence([pool, conv, norm])

    return make


_OPERATIONS: dict[str, Callable[[Channels, int], InstantiableParams]] = {
    "none": _none,
    "1x1": relu_conv_bn,
    "3x3": _conv_3x3,
    "1x7_7x1": _conv_1x7_7x1,
    "avg_pool_3x3": _pool("AVG", 3),
    "max_pool_2x2": _pool("MAX", 2),
    "max_pool_3x3": _pool("MAX", 3),
}


def operation(name: str, channels: Channels, stride: int) -> InstantiableParams:
    """Params of an operation `[B, H, W, I]` -> `[B, H/stride, W/stride, F]`.

    Raises:
        ValueError: if there is no operation of that name.
    """
    if name not in _OPERATIONS:
        raise ValueError(
            f"A genotype's operation must be one of {sorted(_OPERATIONS)}; "
            f"got {name!r}."
        )
    return _OPERATIONS[name](channels, stride)
