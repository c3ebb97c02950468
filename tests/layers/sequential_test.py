"""Layers one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import ActivationLayer
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer, as_args
from lingvo_pipe.nested_map import NestedMap


class SwapLayer(BaseLayer):
    """(x, y) -> (y, x)."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> tuple[Any, Any]:
        return y, x


class JoinLayer(BaseLayer):
    """(x, y) -> NestedMap."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> NestedMap:
        return NestedMap(x=x, y=y)


class SizeLayer(BaseLayer):
    """A NestedMap -> the number of its items."""

    def FProp(self, theta: NestedMap, nmap: NestedMap) -> int:
        return len(nmap)


def sequence(*sub: InstantiableParams) -> Any:
    return SequentialLayer.Params().Set(name="seq", sub=list(sub)).Instantiate()


def dense(num_in: int, num_out: int) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


def test_it_is_the_composition_of_its_layers() -> None:
    layer = sequence(dense(3, 4), ActivationLayer.Params(), dense(4, 2))
    x = tf.random.stateless_normal([5, 3], [1, 2])
    first, _, last = layer.sub
    np.testing.assert_array_equal(layer(x), last(tf.nn.relu(first(x))))
    assert [sub.params.name for sub in layer.sub] == ["sub_0", "sub_1", "sub_2"]


def test_a_tuple_becomes_several_inputs_and_a_map_one() -> None:
    assert sequence(SwapLayer.Params())(1, 2) == (2, 1)
    assert sequence(SwapLayer.Params(), SwapLayer.Params())(1, 2) == (1, 2)
    assert sequence(JoinLayer.Params(), SizeLayer.Params())(1, 2) == 2


@pytest.mark.parametrize(
    ("args", "outputs"), [((), ()), ((1,), 1), ((1, 2), (1, 2)), ((None,), None)]
)
def test_no_layers_return_the_inputs(args: Any, outputs: Any) -> None:
    assert sequence()(*args) == outputs
    shapes = [(1, 2)] * len(args)
    meta = SequentialLayer.FPropMeta(SequentialLayer.Params(), *shapes)
    assert (meta.flops, meta.out_shapes) == (0, tuple(shapes))


def test_its_cost_is_the_sum_of_its_layers() -> None:
    layer = sequence(dense(3, 4), ActivationLayer.Params(), dense(4, 2))
    meta = SequentialLayer.FPropMeta(layer.params, (5, 3))
    assert meta.flops == 5 * (4 * (2 * 3 + 1) + 4 + 2 * (2 * 4 + 1))
    assert meta.out_shapes == ((5, 2),)


def test_outputs_as_args() -> None:
    assert as_args([1, 2]) == as_args((1, 2)) == (1, 2)
    assert as_args(None) == (None,)
    assert as_args(NestedMap(a=1)) == (NestedMap(a=1),)
