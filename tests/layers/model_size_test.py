"""Sizes counted from Params agree with models that are built."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.model_size import LayerSize, layer_sizes, parameter_counts
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.layer_examples import EXAMPLES, example_layer


@pytest.mark.parametrize("example", EXAMPLES)
def test_as_many_as_the_layer_has(example: str) -> None:
    variables = example_layer(example).VariablePaths().values()
    count = sum(math.prod(v.shape) for v in variables if v.trainable)
    assert parameter_counts([EXAMPLES[example].params]) == [count]


def _dense(num_in: int, num_out: int) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


@pytest.mark.parametrize(
    ("example", "multiply_adds"),
    [
        ("dense", 4 * 2 * 5 * 3),
        ("conv", 4 * 3 * 6 * 4 * (3 * 2 * 3)),
        ("depthwise", 4 * 3 * 3 * 6 * (3 * 2)),
        ("separable", 4 * 5 * 6 * (6 * 9 + 5 * 6)),
        ("batch_norm", 0),
        ("max_pool", 0),
        ("dropout", 0),
        ("sequential_repeated", 3 * (4 * 3 * 3)),
    ],
)
def test_multiply_adds_are_those_of_the_formula(
    example: str, multiply_adds: int
) -> None:
    p, shapes = EXAMPLES[example].params, EXAMPLES[example].inputs
    (size,) = layer_sizes([p], *[tf.TensorSpec(shape) for shape in shapes])
    assert [size] == [LayerSize(n, multiply_adds) for n in parameter_counts([p])]


class ProductLayer(BaseLayer):
    """Products of matrices, transposed or not, and of many matrices at once."""

    def FProp(self, theta: NestedMap, x: tf.Tensor, unused: None) -> Any:
        first = tf.linalg.matmul(x[0], x[0], transpose_a=True)
        second = tf.linalg.matmul(x[0], x[0], transpose_b=True)
        third = tf.linalg.matmul(x, x, adjoint_a=True)
        return first, second, third, tf.linalg.matmul(x, third)


def test_products_of_matrices_count_whichever_is_transposed() -> None:
    inputs = [tf.TensorSpec([2, 3, 5]), None]
    (size,) = layer_sizes([ProductLayer.Params()], *inputs)
    transposed, plain = 5 * 5 * 3, 3 * 3 * 5
    assert size == LayerSize(0, transposed + plain + 2 * transposed + 2 * 3 * 5 * 5)


def test_layers_are_counted_one_by_one() -> None:
    layers = [_dense(3, 4), _dense(4, 5)]
    assert parameter_counts(layers) == [16, 25]
    sizes = layer_sizes(layers, tf.TensorSpec([7, 3]))
    assert sizes == [LayerSize(16, 7 * 12), LayerSize(25, 7 * 20)]


def test_nothing_is_allocated() -> None:
    width = 10**8
    (size,) = layer_sizes([_dense(width, width)], tf.TensorSpec([1, width]))
    assert size == LayerSize(width**2 + width, width**2)
