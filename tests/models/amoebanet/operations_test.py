"""Each operation against an implementation by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES
from lingvo_pipe.models.amoebanet.operations import Channels, operation
from tests.support.errors import fails

EPSILON = 1e-3
NAMES = sorted(
    {e.op for g in GENOTYPES.values() for c in g for pair in c.pairs for e in pair}
)
NUM_FILTERS = 9  # Not a multiple of 4: a fourth is rounded down.
# Channels in and out: equal, different, and too few for a bottleneck.
CHANNELS = [(NUM_FILTERS, NUM_FILTERS), (5, NUM_FILTERS), (3, 3), (5, 2)]


def _operation(name: str, num_in: int, num_filters: int, stride: int) -> Any:
    norm = BatchNormLayer.Params().Set(epsilon=EPSILON)
    p = operation(name, Channels(num_in, num_filters, norm), stride)
    return p.Set(name="op").Instantiate()


class Weights:
    """Random weights of an operation, taken in their order."""

    def __init__(self, layer: Any):
        flat = [
            tf.random.stateless_uniform(v.shape, [i, 1], 0.5, 1.5)
            * (-1.0 if i % 2 and len(v.shape) > 1 else 1.0)
            for i, v in enumerate(tf.nest.flatten(layer.vars))
        ]
        self.theta = layer.vars.Pack(flat)
        self._layers: Iterator[Any] = iter(self.theta.sub)

    def next(self) -> Any:
        """The next layer's that has any."""
        return next(theta for theta in self._layers if theta)


def _relu(x: Any) -> np.ndarray:
    return np.maximum(x, 0.0)


def _norm(x: Any, w: Weights) -> np.ndarray:
    theta = w.next()
    deviation = np.sqrt(theta.moving_variance + EPSILON)
    return (x - theta.moving_mean) / deviation * theta.gamma + theta.beta


def _conv(x: Any, w: Weights, window: tuple, strides: tuple) -> Any:
    kernel = w.next().w
    assert tuple(kernel.shape[:2]) == window
    return _norm(tf.nn.conv2d(_relu(x), kernel, strides, "SAME"), w)


def _separable(x: Any, w: Weights, window: int, stride: int) -> Any:
    for each in (stride, 1):
        theta = w.next()
        assert tuple(theta.depthwise.w.shape[:2]) == (window, window)
        x = tf.nn.separable_conv2d(
            _relu(x), theta.depthwise.w, theta.pointwise.w, [1, each, each, 1], "SAME"
        )
        x = _norm(x, w)
    return x


def _pool(x: Any, w: Weights, window: int, stride: int, reduce: Any) -> Any:
    """Pools one window after another, without pixels outside the image."""
    size, num_filters = x.shape[1], w.theta.sub[1].w.shape[-1] if w.theta.sub[1:] else 0
    size_out = -(-size // stride)
    padding = max((size_out - 1) * stride + window - size, 0) // 2
    pooled = np.zeros([x.shape[0], size_out, size_out, x.shape[3]], np.float32)
    for i in range(size_out):
        for j in range(size_out):
            rows, columns = (
                slice(max(k * stride - padding, 0), k * stride - padding + window)
                for k in (i, j)
            )
            pooled[:, i, j] = reduce(x[:, rows, columns], axis=(1, 2))
    if not num_filters:
        return pooled
    return _norm(np.einsum("bhwi,io->bhwo", pooled, w.next().w[0, 0]), w)


def _bottleneck(x: Any, w: Weights, num_filters: int, middle: list) -> Any:
    has_bottleneck = num_filters >= 4
    if has_bottleneck:
        x = _conv(x, w, (1, 1), (1, 1))
        assert x.shape[-1] == num_filters // 4
    for window, strides in middle:
        x = _conv(x, w, window, strides)
    return _conv(x, w, (1, 1), (1, 1)) if has_bottleneck else x


def _by_hand(name: str, x: Any, w: Weights, num_filters: int, stride: int) -> Any:
    s = stride
    if name == "none" and s == 1 and x.shape[-1] == num_filters:
        return x
    if name in ("none", "1x1"):
        return _conv(x, w, (1, 1), (s, s))
    if name == "3x3":
        return _bottleneck(x, w, num_filters, [((3, 3), (s, s))])
    if name == "1x7_7x1":
        middle = [((1, 7), (1, s)), ((7, 1), (s, 1))]
        return _bottleneck(x, w, num_filters, middle)
    kind, _, window = name.partition("_pool_")
    if window:
        reduce = {"max": np.max, "avg": np.mean}[kind]
        return _pool(x, w, int(window[0]), s, reduce)
    # Of separable_3x3_2 and of dil_2_separable_5x5_2, which is not dilated.
    return _separable(x, w, int(name[-5]), s)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("num_in", "num_filters"), CHANNELS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_its_name_says(
    name: str, num_in: int, num_filters: int, stride: int, size: int
) -> None:
    layer = _operation(name, num_in, num_filters, stride)
    weights = Weights(layer)
    x = tf.random.stateless_normal([2, size, size, num_in], [7, 8]).numpy()
    with ForwardContext(do_eval=True):
        got = layer.FProp(weights.theta, tf.constant(x))
    want = _by_hand(name, x, weights, num_filters, stride)
    scale = np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale)
    assert got.shape == [2, -(-size // stride), -(-size // stride), num_filters]
    assert not [theta for theta in weights._layers if theta], "weights not used"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("1x1", lambda f, q: f**2 + 2 * f),
        ("none", lambda f, q: 0),
        ("3x3", lambda f, q: 2 * f * q + 9 * q**2 + 4 * q + 2 * f),
        ("1x7_7x1", lambda f, q: 2 * f * q + 14 * q**2 + 6 * q + 2 * f),
        ("separable_3x3_2", lambda f, q: 2 * (9 * f + f**2 + 2 * f)),
        ("separable_5x5_2", lambda f, q: 2 * (25 * f + f**2 + 2 * f)),
        ("separable_7x7_2", lambda f, q: 2 * (49 * f + f**2 + 2 * f)),
        ("dil_2_separable_5x5_2", lambda f, q: 2 * (25 * f + f**2 + 2 * f)),
        ("avg_pool_3x3", lambda f, q: 0),
        ("max_pool_2x2", lambda f, q: 0),
        ("max_pool_3x3", lambda f, q: 0),
    ],
)
def test_its_parameters_are_those_of_the_formula(name: str, count: Any) -> None:
    assert name in NAMES
    layer = _operation(name, NUM_FILTERS, NUM_FILTERS, 1)
    trained = [v for v in layer.VariablePaths().values() if v.trainable]
    found = sum(int(np.prod(v.shape)) for v in trained)
    assert found == count(NUM_FILTERS, NUM_FILTERS // 4)


def test_unknown_operations_are_refused() -> None:
    with fails(path="operation", got="1x7_7x"):
        _operation("1x7_7x", 8, 8, 1)
