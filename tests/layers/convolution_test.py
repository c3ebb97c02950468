"""Convolutions and pools against loops that compute, and count, every operation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    GlobalAveragePoolingLayer,
    PoolingLayer,
    SeparableConv2DLayer,
)
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from tests.support.errors import fails

IMAGE = (2, 5, 6, 2)


def windows(
    x: np.ndarray, window: Any, stride: Any, dilation: Any, padding: str, fill: float
) -> np.ndarray:
    """All windows of images: [B, H', W', window height, window width, C]."""
    pads = [(0, 0)]
    for size, w, s, d in zip(x.shape[1:3], window, stride, dilation, strict=True):
        span = (w - 1) * d + 1
        missing = max((-(-size // s) - 1) * s + span - size, 0)
        before = missing // 2 if padding == "SAME" else 0
        pads.append((before, missing - before if padding == "SAME" else 0))
    x = np.pad(x, [*pads, (0, 0)], constant_values=fill)
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
    rows = range(0, x.shape[1] - spans[0] + 1, stride[0])
    columns = range(0, x.shape[2] - spans[1] + 1, stride[1])
    seen = [
        x[:, r : r + spans[0] : dilation[0], c : c + spans[1] : dilation[1]]
        for r in rows
        for c in columns
    ]
    stacked = np.stack(seen, axis=1)
    return stacked.reshape(len(x), len(rows), len(columns), *stacked.shape[2:])


class Counter:
    """Multiplies and adds, one number at a time."""

    def __init__(self) -> None:
        self.flops = 0

    def dot(self, xs: np.ndarray, ws: np.ndarray) -> float:
        total = 0.0
        for x, w in zip(xs.ravel(), ws.ravel(), strict=True):
            total += x * w
            self.flops += 2
        return total

    def add(self, x: float, y: float) -> float:
        self.flops += 1
        return x + y


def convolve(p: Any, x: np.ndarray, theta: Any, depthwise: bool) -> tuple[Any, int]:
    counter, w = Counter(), theta.w.numpy()
    seen = windows(
        x, p.filter_shape[:2], p.filter_stride, p.dilation_rate, p.padding, 0.0
    )
    num_out = w.shape[2] * w.shape[3] if depthwise else w.shape[3]
    y = np.zeros([*seen.shape[:3], num_out])
    for b, r, c, o in itertools.product(*map(range, y.shape)):
        if depthwise:
            i, m = divmod(o, w.shape[3])
            y[b, r, c, o] = counter.dot(seen[b, r, c, :, :, i], w[:, :, i, m])
        else:
            y[b, r, c, o] = counter.dot(seen[b, r, c], w[..., o])
        if p.bias:
            y[b, r, c, o] = counter.add(y[b, r, c, o], float(theta.b[o]))
    return y, counter.flops


def layer_and_inputs(p: InstantiableParams, shape: Any) -> tuple[Any, Any]:
    p.Set(name="layer", dtype=tf.float64)
    layer = p.Instantiate()
    if "b" in layer.vars:
        layer.vars.b.assign(tf.range(layer.vars.b.shape[0], dtype=tf.float64))
    return layer, tf.random.stateless_normal(shape, [1, 2], dtype=tf.float64)


def check(layer: Any, x: Any, expected: np.ndarray, flops: int) -> None:
    np.testing.assert_allclose(layer(x), expected, rtol=1e-10, atol=1e-10)
    meta = type(layer).FPropMeta(layer.params, tuple(x.shape))
    assert meta.out_shapes == (expected.shape,)
    if "dilation_rate" in layer.params and max(layer.params.dilation_rate) > 1:
        assert flops <= meta.flops < 10 * flops  # TensorFlow pads the images.
    else:
        assert meta.flops == flops


@pytest.mark.parametrize("cls", [Conv2DLayer, DepthwiseConv2DLayer])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("window", "move"),
    [
        ([1, 1], {}),
        ([3, 2], {"bias": True}),
        ([2, 3], {"filter_stride": [2, 2]}),
        ([1, 1], {"filter_stride": [3, 3], "bias": True}),
        ([2, 3], {"dilation_rate": [3, 2]}),
        ([3, 1], {"dilation_rate": [2, 2], "bias": True}),
    ],
)
def test_convolutions(cls: Any, padding: str, window: Any, move: Any) -> None:
    p = cls.Params().Set(filter_shape=[*window, 2, 3], padding=padding, **move)
    layer, x = layer_and_inputs(p, IMAGE)
    depthwise = cls is DepthwiseConv2DLayer
    check(layer, x, *convolve(layer.params, x.numpy(), layer.theta, depthwise))


def test_a_convolution_may_have_unequal_strides() -> None:
    p = Conv2DLayer.Params().Set(filter_shape=[2, 2, 2, 1], filter_stride=[2, 1])
    layer, x = layer_and_inputs(p, IMAGE)
    check(layer, x, *convolve(layer.params, x.numpy(), layer.theta, False))


def test_a_separable_convolution_is_two() -> None:
    p = SeparableConv2DLayer.Params().Set(
        filter_shape=[3, 3, 2, 4], depth_multiplier=2, filter_stride=[2, 2], bias=True
    )
    layer, x = layer_and_inputs(p, IMAGE)
    layer.pointwise.vars.b.assign([1.0, 2.0, 3.0, 4.0])
    between, first = convolve(
        layer.depthwise.params, x.numpy(), layer.theta.depthwise, True
    )
    y, second = convolve(layer.pointwise.params, between, layer.theta.pointwise, False)
    check(layer, x, y, first + second)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("pooling_type", ["MAX", "AVG"])
@pytest.mark.parametrize(
    ("window", "stride"), [([2, 2], [2, 2]), ([3, 3], [1, 1]), ([2, 3], [2, 1])]
)
def test_pools(pooling_type: str, padding: str, window: Any, stride: Any) -> None:
    p = PoolingLayer.Params().Set(
        pooling_type=pooling_type,
        padding=padding,
        window_shape=window,
        window_stride=stride,
    )
    layer, x = layer_and_inputs(p, IMAGE)
    seen = windows(x.numpy(), window, stride, [1, 1], padding, np.nan)
    reduce = np.nanmax if pooling_type == "MAX" else np.nanmean
    check(layer, x, reduce(seen, axis=(3, 4)), seen.size)


def test_the_global_pool_is_the_mean() -> None:
    layer, x = layer_and_inputs(GlobalAveragePoolingLayer.Params(), IMAGE)
    check(layer, x, x.numpy().mean((1, 2)), x.numpy().size)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", ["NONE", "RELU"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (3,)])
def test_dense_layers(has_bias: bool, activation: str, shape: Any) -> None:
    p = FCLayer.Params().Set(
        input_dim=3, output_dim=5, has_bias=has_bias, activation=activation
    )
    layer, x = layer_and_inputs(p, shape)
    counter, theta = Counter(), layer.theta
    y = np.zeros([*shape[:-1], 5])
    for *row, o in np.ndindex(*y.shape):
        y[(*row, o)] = counter.dot(x.numpy()[tuple(row)], theta.w.numpy()[:, o])
        if has_bias:
            y[(*row, o)] = counter.add(y[(*row, o)], float(theta.b[o]))
        if activation == "RELU":
            counter.flops += 1
            y[(*row, o)] = max(y[(*row, o)], 0.0)
    check(layer, x, y, counter.flops)


@pytest.mark.parametrize(
    "params",
    [
        Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 1], padding="VALID"),
        PoolingLayer.Params().Set(window_shape=[3, 3], padding="VALID"),
    ],
)
def test_a_window_must_fit(params: InstantiableParams) -> None:
    with fails(got="float32 [1, 5, 2, 1]"):
        params.cls.FPropMeta(params, (1, 5, 2, 1))


@pytest.mark.parametrize("num_rows", [None, 2])
def test_a_gradient_of_pooling_stashes_the_images_alone(num_rows: int | None) -> None:
    p = PoolingLayer.Params().Set(name="pool", window_shape=[2, 2])
    with tf.Graph().as_default() as graph, ForwardContext(num_rows=num_rows):
        images = tf.compat.v1.placeholder(tf.float32, [2, 4, 4, 3])
        with tf.GradientTape() as tape:
            tape.watch(images)
            pooled = p.Instantiate().FPropDefaultTheta(images)
        tape.gradient(pooled, images)
    operations = graph.get_operations()
    (gradient,) = [op for op in operations if op.type == "MaxPoolGrad"]
    of_forward_pass, again = [op for op in operations if op.type == "MaxPool"]
    assert gradient.inputs[1].op is again
    assert again is not of_forward_pass


def test_pooling_in_training_can_be_saved_outside_of_pipelines(tmp_path: Path) -> None:
    """Once TensorFlow could not trace its gradient."""
    module = tf.Module()
    layer = PoolingLayer.Params().Set(name="pool", window_shape=[2, 2]).Instantiate()
    spec = tf.TensorSpec([2, 4, 4, 3])
    module.pool = tf.function(layer.FPropDefaultTheta, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    images = tf.random.stateless_uniform(spec.shape, [1, 2])
    loaded = tf.saved_model.load(str(tmp_path)).pool
    gradients = []
    for pool in (layer.FPropDefaultTheta, loaded):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(pool(images) ** 2)
        gradients.append(tape.gradient(total, images))
    np.testing.assert_array_equal(*gradients)
