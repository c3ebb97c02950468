"""A Shape has Lingvo's methods and is a tuple; every FPropMeta takes Shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import Shape, as_shapes
from tests.support.errors import fails

SHAPE = Shape([2, 3, 5])


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (SHAPE[:-1] + [7], (2, 3, 7)),
        ([7] + SHAPE[1:], (7, 3, 5)),
        (SHAPE[0:1] + [7] + SHAPE[2:], (2, 7, 5)),
        ((7,) + SHAPE, (7, 2, 3, 5)),
        (SHAPE + (7,), (2, 3, 5, 7)),
        (SHAPE + Shape([7]), (2, 3, 5, 7)),
        (SHAPE[::2], (2, 5)),
        (Shape(np.array([2, 3])), (2, 3)),
        (Shape([]), ()),
    ],
)
def test_slices_and_sums_are_shapes(found: Any, expected: tuple[int, ...]) -> None:
    assert found == expected
    assert isinstance(found, Shape)
    assert all(type(size) is int for size in found)


def test_it_counts_elements() -> None:
    assert (SHAPE.rank, SHAPE.size, SHAPE.num_elements()) == (3, 30, 30)
    assert (Shape([]).rank, Shape([]).size) == (0, 1)
    assert Shape([2, None]).size is None
    assert SHAPE[-1] == 5


def test_it_is_a_tuple() -> None:
    assert (str(SHAPE), hash(SHAPE), [*SHAPE]) == (
        "(2, 3, 5)",
        hash((2, 3, 5)),
        [2, 3, 5],
    )
    assert SHAPE.ToTensorShape().as_list() == [2, 3, 5]
    assert Shape([2, None]).ToTensorShape().as_list() == [2, None]
    assert tf.zeros(SHAPE).shape == SHAPE


@pytest.mark.parametrize("size", ["channels", -1, 2.0, True])
def test_a_dimension_is_an_integer_or_unknown(size: Any) -> None:
    with fails(path="Dimension of a Shape", got=size):
        Shape([2, size])


def test_containers_hold_shapes() -> None:
    found = as_shapes(NestedMap(a=(2, 3), b=[(2,), None], c=Pair((4,), (5, 6))))
    assert found == NestedMap(a=(2, 3), b=[(2,), None], c=Pair((4,), (5, 6)))
    for shape in (found.a, found.b[0], found.c.first, found.c.second):
        assert isinstance(shape, Shape)
    assert as_shapes(None) is None
    assert as_shapes(found.a) is found.a
    assert as_shapes(tf.TensorSpec([2], tf.int32)).dtype == tf.int32
    assert as_shapes([tf.TensorShape([2, None])]) == [(2, None)]


class _Widening(BaseLayer):
    """A layer whose FPropMeta is written as for Lingvo."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.concat([x, x], -1)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        (x,) = shapes
        out_shape = x[:-1] + [2 * x[-1]]
        return NestedMap(flops=x.num_elements() * 3, out_shapes=(out_shape,))


def test_layers_get_shapes_from_layers_that_return_tuples() -> None:
    """A test, a layer or a pipeline may ask for the costs."""
    widening, dense = (
        _Widening.Params(),
        FCLayer.Params().Set(input_dim=3, output_dim=4),
    )
    meta = _Widening.FPropMeta(widening, (2, 3))
    assert meta == NestedMap(flops=18, out_shapes=((2, 6),))
    sequence = SequentialLayer.Params().Set(sub=[dense, widening, widening])
    out_shapes = sequence.cls.FPropMeta(sequence, [2, 3]).out_shapes
    assert out_shapes == ((2, 16),)
    assert isinstance(out_shapes[0], Shape)
    sizes = layer_sizes([dense, widening, widening], (2, 3))
    assert [size.flops for size in sizes[1:]] == [24, 48]


class _Named(BaseLayer):
    @classmethod
    def FPropMeta(cls, p: InstantiableParams, inputs: Any) -> NestedMap:
        return NestedMap(flops=0, out_shapes=(inputs + [7],))


def test_arguments_may_be_named_and_dimensions_unknown() -> None:
    assert _Named.FPropMeta(_Named.Params(), inputs=[2, 3]).out_shapes == ((2, 3, 7),)
    assert isinstance(as_shapes((None, 3)), Shape)
    assert not isinstance(as_shapes((None, None)), Shape)  # No tensors at all.
