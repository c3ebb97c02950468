"""Params and inputs of layers that are refused, by the param's path and the value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    PoolingLayer,
    SeparableConv2DLayer,
)
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer, DropPathLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.sequential import (
    FeatureExtractionLayer,
    FetchLayer,
    SequentialLayer,
)
from tests.layers.layer_examples import EXAMPLES, example_layer
from tests.support.errors import fails

# One param of a layer whose other params are its defaults.
REFUSED: list[tuple[Any, str, Any]] = [
    (MultiHeadAttentionLayer, "dim", 0),
    *((BatchNormLayer, "decay", x) for x in (1.0, -0.1, None)),
    (BatchNormLayer, "epsilon", 0.0),
    *((LayerNormLayer, "epsilon", x) for x in (0.0, None)),
    *((DropoutLayer, "keep_prob", x) for x in (0.0, 1.1, "0.5")),
    (DropPathLayer, "keep_prob", 0.0),
    *((DropPathLayer, "num_steps", x) for x in (0, "9")),
    (SequentialLayer, "repeat", 0),
    (FeatureExtractionLayer, "num_act_inputs", -1),
    (FeatureExtractionLayer, "num_act_outputs", 1),
    (Conv2DLayer, "padding", "same"),
    (PoolingLayer, "padding", "FULL"),
    (PoolingLayer, "pooling_type", "MIN"),
    *((PoolingLayer, "window_shape", x) for x in (2, [2], [2, 0])),
    (PoolingLayer, "window_stride", None),
    *((Conv2DLayer, "filter_shape", x) for x in (3, [3, None], [0, 0, 0, 0])),
    *((SeparableConv2DLayer, "filter_stride", x) for x in (2, [1, 2, 2, 1])),
    (SeparableConv2DLayer, "filter_shape", [3, 3]),
    (Conv2DLayer, "dilation_rate", None),
    (DepthwiseConv2DLayer, "filter_stride", [1, 2]),
]


@pytest.mark.parametrize(("cls", "name", "value"), REFUSED)
def test_a_param_that_is_refused(cls: Any, name: str, value: Any) -> None:
    with fails(path=f"layer.{name}", got=value):
        cls.Params().Set(name="layer", **{name: value}).Instantiate()


_TWO = {"filter_shape": [3, 3, 2, 2], "filter_stride": [2, 2], "dilation_rate": [1, 2]}
_FETCH = {"sub": [FetchLayer.Params().Set(name="first")]}
_PREFIXED = {**_FETCH, "variable_name_prefix": "s1_", "act_fetch_layers": ["first"]}


@pytest.mark.parametrize(
    ("cls", "params", "path", "got"),
    [
        (MultiHeadAttentionLayer, {"dim": 4, "num_heads": 0}, "layer.num_heads", 0),
        (
            MultiHeadAttentionLayer,
            {"dim": 4, "dim_per_head": 0},
            "layer.dim_per_head",
            0,
        ),
        (DepthwiseConv2DLayer, _TWO, "layer.dilation_rate", [1, 2]),
        (SeparableConv2DLayer, _TWO, "layer/depthwise.dilation_rate", [1, 2]),
        (ActivationLayer, {"activation": "relu"}, "activation", "relu"),
        (FCLayer, {"activation": "TAHN"}, "activation", "TAHN"),
        (Conv2DLayer, {}, "layer.filter_shape", [0, 0, 0, 0]),
        (FeatureExtractionLayer, _PREFIXED, "layer.act_fetch_layers", "first"),
    ],
)
def test_params_that_are_refused(cls: Any, params: Any, path: str, got: Any) -> None:
    with fails(path=path, got=got):
        cls.Params().Set(name="layer", **params).Instantiate()


def test_all_problems_of_activations_are_reported_at_once() -> None:
    p = FeatureExtractionLayer.Params().Set(name="layer", **_FETCH, num_act_outputs=7)
    with fails() as info:
        p.Set(act_fetch_layers=["frist", "second"]).Instantiate()
    assert [problem.got for problem in info.value.problems] == [7, "frist", "second"]
    assert info.value.problems[1].hint == "Did you mean 'first'?"


@pytest.mark.parametrize(
    "example", ["dense", "conv", "depthwise", "batch_norm", "layer_norm", "bias"]
)
def test_other_channels_are_refused(example: str) -> None:
    """TensorFlow would take a multiple for a grouped convolution."""
    (shape,) = EXAMPLES[example].inputs
    assert shape is not None
    more = (*shape[:-1], 2 * shape[-1])
    with fails(path="root", got=f"shape {more}"):
        example_layer(example)(tf.ones(more))
    with fails(path="root", got="shape <unknown>"):
        example_layer(example)(np.ones(shape).tolist())
