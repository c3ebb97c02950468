"""Sizes counted from Params agree with models that are built."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserLayerError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.layer_examples import EXAMPLES, IMAGE, example_layer
from tests.support.errors import fails


@pytest.mark.parametrize("example", EXAMPLES)
def test_as_many_as_the_layer_has(example: str) -> None:
    variables = example_layer(example).VariablePaths().values()
    count = sum(math.prod(v.shape) for v in variables if v.trainable)
    assert parameter_counts([EXAMPLES[example].params]) == [count]


def _dense(num_in: int, num_out: int) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


def test_layers_are_counted_one_by_one() -> None:
    layers = [_dense(3, 4), _dense(4, 5)]
    assert parameter_counts(layers) == [16, 25]
    sizes = layer_sizes(layers, tf.TensorSpec([7, 3]))
    assert [(x.num_parameters, x.multiply_adds) for x in sizes] == [
        (16, 7 * 12),
        (25, 7 * 20),
    ]
    assert [x.outputs for x in sizes] == [(tf.TensorSpec([7, n]),) for n in (4, 5)]
    assert [x.output_elements for x in sizes] == [28, 35]
    assert layer_sizes([], tf.TensorSpec([7, 3])) == []


def test_nothing_is_allocated() -> None:
    width = 10**8
    (size,) = layer_sizes([_dense(width, width)], tf.TensorSpec([1, width]))
    assert size[:2] == (width**2 + width, width**2)


_SOFTMAX, _NORM = 5, 8


@pytest.mark.parametrize(
    ("example", "flops"),
    [
        ("activation_NONE", 0),
        ("activation_RELU", 4 * 3),
        ("dense", 4 * 2 * 5 * (2 * 3 + 1 + 1)),
        ("dense_without_bias", 4 * 5 * 2 * 3),
        ("dropout", 4 * 5 * 3 * 2),
        ("fetch", 0),
        ("token_embedding", 4 * 5 * 6),
        ("sequential_repeated", 3 * 4 * 3 * (2 * 3 + 1 + 1)),
        ("local_loss", 0),
        ("bias", 4 * 2 * 3),
    ],
)
def test_flops_are_those_of_the_formula(example: str, flops: int) -> None:
    p, shapes = EXAMPLES[example].params, EXAMPLES[example].inputs
    (size,) = layer_sizes([p], *shapes)
    assert size.flops == flops


def test_flops_of_attention_are_those_of_the_formula() -> None:
    """Four dense layers, two products, scaled queries, softmax and dropout."""
    batch, time, dim, heads, size = 4, 5, 6, 2, 4
    p = EXAMPLES["self_attention"].params
    (attention,) = layer_sizes([p], (batch, time, dim))
    dense = 4 * (2 * batch * time * dim * heads * size)
    weights = batch * heads * time * time
    products = 2 * (2 * weights * size)
    others = batch * time * heads * size + (_SOFTMAX + 2) * weights
    assert attention.flops == dense + products + others


def test_flops_of_batch_norm_are_those_of_each_value_and_few_of_each_channel() -> None:
    (size,) = layer_sizes([EXAMPLES["batch_norm"].params], IMAGE)
    assert 0 <= size.flops - _NORM * math.prod(IMAGE) < 20 * IMAGE[-1]


def test_flops_of_logits_are_those_of_the_formula() -> None:
    p = LogitsLayer.Params().Set(num_tokens=50, model_dim=8, has_bias=True)
    hidden = NestedMap(target=NestedMap(hidden=(2, 3, 8)))
    (size,) = layer_sizes([p.Set(logits_soft_max=3.0)], hidden)
    assert size.flops == 2 * 3 * 50 * (2 * 8 + 1 + 3)


def test_a_head_with_a_loss_counts() -> None:
    p = LocalLossLayer.Params().Set(head=_dense(3, 7))
    (size,) = layer_sizes([p], (4, 3))
    assert (size.flops, size.outputs) == (4 * 7 * (2 * 3 + 1), (tf.TensorSpec([4, 3]),))


class SpreadLayer(BaseLayer):
    """x -> (NestedMap of x and None, None, x)."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
        return NestedMap(a=x, b=(x, None)), None, x + 1.0


class GatherLayer(BaseLayer):
    """Outputs of SpreadLayer -> x."""

    def FProp(self, theta: NestedMap, spread: NestedMap, nothing: None, x: Any) -> Any:
        assert nothing is spread.b[1] is None
        return spread.a + spread.b[0] + x


def test_layers_may_pass_on_structures() -> None:
    layers = [SpreadLayer.Params(), GatherLayer.Params()]
    sizes = layer_sizes(layers, (4, 3))
    assert [(x.flops, x.output_elements) for x in sizes] == [(12, 36), (24, 12)]
    again = layer_sizes(layers[1:], NestedMap(a=(4, 3), b=((4, 3), None)), None, (4, 3))
    assert again == sizes[1:]


class CountedLayer(BaseLayer):
    """An identity that counts how often it is traced."""

    traced: ClassVar[list[Any]] = []

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.traced.append(x.shape)
        return tf.identity(x)


def test_equal_layers_with_equal_inputs_are_traced_once() -> None:
    """Also if they are other objects with other names."""
    CountedLayer.traced.clear()
    p = CountedLayer.Params()
    layers = [p, p, p.Copy().Set(name="a"), _dense(3, 5), p, p.Copy().Set(name="b")]
    assert len(layer_sizes(layers, (4, 3))) == len(layers)
    assert CountedLayer.traced == [(4, 3), (4, 5)]


class UnknownLayer(BaseLayer):
    """A layer without FProp."""


class RefusingLayer(BaseLayer):
    """A layer that refuses its inputs without a word."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        assert x.shape.rank == 3
        return x


class CutLayer(BaseLayer):
    """A layer whose outputs have a shape that only a run decides."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.boolean_mask(x, x[:, 0] > 0.0)


def test_outputs_of_unknown_shapes_are_reported_as_such() -> None:
    layers = [_dense(3, 5), CutLayer.Params().Set(name="cut")]
    path = "layers[1], CutLayer 'cut'.outputs"
    with fails(UserLayerError, path=path, got="float32 [None, 5]"):
        layer_sizes(layers, (4, 3))


@pytest.mark.parametrize(
    ("p", "hint"),
    [
        (UnknownLayer.Params(), "UnknownLayer.FProp"),
        (SequentialLayer.Params().Set(sub=[UnknownLayer.Params()]), "UnknownLayer."),
        (Conv2DLayer.Params().Set(filter_shape=[3, 3, 5, 2]), "5"),
        (_dense(6, 2), "6"),
        (_dense(5, 2).Set(activation="TANHH"), "TANHH"),
        (RefusingLayer.Params(), "AssertionError"),
    ],
)
def test_a_layer_that_does_not_take_its_inputs_is_named(
    p: InstantiableParams, hint: str
) -> None:
    path = f"cell_tpl[1], {p.cls.__name__} 'x'"
    with fails(path=path, got="float32 [4, 5]") as info:
        layer_sizes([_dense(3, 5), p.Copy().Set(name="x")], (4, 3), path="cell_tpl")
    assert hint in info.value.hint


@pytest.mark.parametrize("shape", [4, "43", (2.5,), (4, None), tf.TensorShape([None])])
def test_invalid_shapes_are_refused(shape: Any) -> None:
    with fails():
        layer_sizes([ActivationLayer.Params()], shape)


def test_a_shape_stands_for_floats_or_for_integers_if_these_are_refused() -> None:
    embedding = EXAMPLES["token_embedding"].params
    ids = (4, 5)
    meta = embedding.cls.FPropMeta(embedding, ids)
    assert meta.out_shapes == ((4, 5, 6),)
    assert [meta] == [
        embedding.cls.FPropMeta(embedding, tf.TensorSpec(ids, dtype))
        for dtype in [tf.int64]
    ]
    with fails(path="TokenEmbeddingLayer ''", got="float32 [4, 5]"):
        embedding.cls.FPropMeta(embedding, tf.TensorSpec(ids))
    sizes = layer_sizes([embedding, _dense(6, 2)], ids)
    assert sizes[0].outputs[0].dtype == tf.float32


def test_shapes_of_outputs_know_their_dtype() -> None:
    """So the next layer takes them, if some are integers."""
    p = FnLayer.Params().Set(fn=lambda x: (x, tf.argmax(x, -1)))
    taken = FnLayer.Params().Set(fn=lambda x, i: tf.gather(x, i, batch_dims=1))
    out_shapes = p.cls.FPropMeta(p, (4, 3)).out_shapes
    assert out_shapes == ((4, 3), (4,))
    assert taken.cls.FPropMeta(taken, *out_shapes).out_shapes == ((4,),)


class MixedLayer(BaseLayer):
    """Tokens, weights, positions -> a sum of their rows, which takes flops."""

    def FProp(self, theta: NestedMap, *inputs: tf.Tensor) -> tf.Tensor:
        tokens, weights, positions = inputs
        rows = tf.gather(tf.zeros([7, 5]), tokens)
        return rows * tf.cast(weights, tf.float32) + tf.one_hot(positions, 5)


def test_only_inputs_that_must_be_integers_are() -> None:
    """Others stay floating-point numbers, whose operations take flops."""
    p = MixedLayer.Params()
    (guessed,) = layer_sizes([p], (4,), (4, 5), (4,))
    specs = [tf.TensorSpec([4], tf.int32), tf.TensorSpec([4, 5])]
    assert layer_sizes([p], *specs, tf.TensorSpec([4], tf.int32)) == [guessed]


def test_dtypes_of_many_inputs_must_be_given() -> None:
    p = FnLayer.Params().Set(fn=lambda *x: tf.one_hot(tf.add_n(x), 3))
    with fails() as info:
        layer_sizes([p], *[(4,)] * 6)
    assert "input_dtypes" in info.value.hint


def test_outputs_may_be_arrays() -> None:
    p = FnLayer.Params().Set(fn=lambda x: (x, np.zeros([2, 3], np.float32), 1.0))
    (size,) = layer_sizes([p], (4,))
    assert [x.shape.as_list() for x in size.outputs] == [[4], [2, 3], []]
