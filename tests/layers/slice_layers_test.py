"""A layer in slices computes what the whole layer does."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    PoolingLayer,
    SeparableConv2DLayer,
)
from lingvo_pipe.layers.core.slicing import num_units, slices_of
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer, FeedForwardLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.embedding import TokenEmbeddingLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.sliced_layers import (
    assert_costs_add_up,
    assert_same,
    compute,
    layers_of,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

_FEED_FORWARD = FeedForwardLayer.Params().Set(
    dim=6, hidden_dim=16, keep_prob=0.7, activation="GELU"
)
_ATTENTION = MultiHeadAttentionLayer.Params().Set(
    dim=6, num_heads=8, dim_per_head=3, keep_prob=0.7
)
_RESIDUAL = ResidualLayer.Params().Set(dim=6, body=_FEED_FORWARD, keep_prob=0.8)
_DENSE = FCLayer.Params().Set(input_dim=6, output_dim=9, activation="TANH")
_CONVOLUTION = Conv2DLayer.Params().Set(filter_shape=[3, 2, 6, 9], bias=True)
_DEPTHWISE = DepthwiseConv2DLayer.Params().Set(filter_shape=[3, 3, 8, 2], bias=True)
_SEPARABLE = SeparableConv2DLayer.Params().Set(
    filter_shape=[3, 3, 9, 8], depth_multiplier=2, bias=True
)
LAYERS = {
    "dense, outputs": _DENSE,
    "dense, inputs": FCLayer.Params().Set(
        input_dim=12, output_dim=5, activation="SIGMOID"
    ),
    "feed-forward": _FEED_FORWARD,
    "feed-forward without biases": _FEED_FORWARD.Copy().Set(has_bias=False),
    "attention": _ATTENTION,
    "attention to a memory": _ATTENTION,
    "embedding": TokenEmbeddingLayer.Params().Set(num_tokens=11, dim=6),
    "embedding of bytes": TokenEmbeddingLayer.Params().Set(num_tokens=11, dim=6),
    "residual": _RESIDUAL,
    "residual, norm last": _RESIDUAL.Copy().Set(norm_first=False),
    "residual attention": _RESIDUAL.Copy().Set(body=_ATTENTION),
    "sequence": SequentialLayer.Params().Set(
        sub=[
            LayerNormLayer.Params().Set(dim=6),
            DropoutLayer.Params().Set(keep_prob=0.8),
            _RESIDUAL,
            ActivationLayer.Params(),
            LayerNormLayer.Params().Set(dim=6, name="norm"),
            _DENSE,
        ]
    ),
    "convolution": _CONVOLUTION,
    "convolution with a stride": _CONVOLUTION.Copy().Set(
        filter_stride=[2, 1], padding="VALID", bias=False
    ),
    "depthwise convolution": _DEPTHWISE,
    "separable convolution": _SEPARABLE,
    "convolutions and batch norms": SequentialLayer.Params().Set(
        sub=[
            _CONVOLUTION,
            BatchNormLayer.Params().Set(dim=9),
            ActivationLayer.Params(),
            PoolingLayer.Params().Set(window_shape=[2, 2], name="pool"),
            _SEPARABLE,
            BatchNormLayer.Params().Set(dim=8),
            _DEPTHWISE,
        ]
    ),
}


def _inputs(name: str, dtype: tf.DType) -> list[Any]:
    def draw(*shape: int) -> tf.Tensor:
        return tf.random.stateless_normal(shape, [1, len(shape)], dtype=dtype)

    if "embedding" in name:
        ids = tf.uint8 if "bytes" in name else tf.int32
        return [tf.constant([[0, 3, 10], [5, 3, 9]], ids)]
    if name == "attention to a memory":
        mask = tf.random.stateless_uniform([2, 1, 4, 5], [1, 2]) < 0.7
        return [draw(2, 4, 6), draw(2, 5, 6), mask]
    if "convolution" in name:
        return [draw(2, 5, 4, {"dep": 8, "sep": 9}.get(name[:3], 6))]
    return [draw(2, 4, 12 if name == "dense, inputs" else 6)]


@pytest.mark.parametrize("dtype", [exhaustive(tf.float32), tf.float64])
@pytest.mark.parametrize("num_slices", [exhaustive(1), exhaustive(2), 3, 8])
@pytest.mark.parametrize("name", LAYERS)
def test_slices_are_the_layer(name: str, num_slices: int, dtype: tf.DType) -> None:
    p = LAYERS[name].Copy().Set(dtype=dtype, random_seed=5)
    inputs = _inputs(name, dtype)
    want = compute(layers_of(p, None), inputs)
    layers = layers_of(p, num_slices)
    assert len(layers) >= num_slices
    tolerance = 1e-12 if dtype == tf.float64 else 1e-6
    assert_same(compute(layers, inputs), want, tolerance)


@pytest.mark.parametrize("num_slices", [2, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_slices_cost_what_the_layer_does_and_a_sum(name: str, num_slices: int) -> None:
    max_ratio = 3.0 * num_slices if "embedding" in name else 1.4
    assert_costs_add_up(LAYERS[name], num_slices, _inputs(name, tf.float32), max_ratio)


def test_units_bound_the_number_of_slices() -> None:
    units = {name: num_units(p) for name, p in LAYERS.items()}
    assert units["feed-forward"] == units["residual"] == 16
    assert units["attention"] == 8
    assert units["dense, inputs"] == 12
    assert units["sequence"] == 9
    assert num_units(LayerNormLayer.Params().Set(dim=6)) == 1


class _ReluLayer(FCLayer):
    @classmethod
    def Params(cls) -> InstantiableParams:
        return super().Params().Set(activation="RELU")


class _MeasuredLayer(FCLayer):
    @property
    def ratio(self) -> float:
        """A method that no method of the base class calls."""
        return self.params.output_dim / self.params.input_dim


class _DoubleLayer(_ReluLayer):
    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * super().FProp(theta, inputs)


class _CutDoubleLayer(_DoubleLayer):
    @classmethod
    def NumUnits(cls, p: InstantiableParams) -> int:
        return 5


@pytest.mark.parametrize(
    ("cls", "units"),
    [(_ReluLayer, 9), (_MeasuredLayer, 9), (_DoubleLayer, 1), (_CutDoubleLayer, 5)],
)
def test_a_subclass_with_methods_defines_its_own_slices(cls: Any, units: int) -> None:
    p = cls.Params().Set(input_dim=6, output_dim=9)
    assert num_units(p) == units
    assert num_units(SequentialLayer.Params().Set(sub=[p])) == units
    if units == 1:
        with fails(path="_DoubleLayer") as info:
            slices_of(p, 2)
        assert "FProp" in info.value.hint


def test_a_layer_without_slices_says_so() -> None:
    with fails(path="LayerNormLayer"):
        LayerNormLayer.Slices(LayerNormLayer.Params().Set(dim=6), 2)
