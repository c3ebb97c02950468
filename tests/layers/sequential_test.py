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


def test_repeated_layers_run_in_turn_with_their_own_weights() -> None:
    sub = [dense(3, 3), ActivationLayer.Params().Set(activation="TANH")]
    p = SequentialLayer.Params().Set(name="seq", sub=sub, repeat=3)
    layer = p.Instantiate()
    x = tf.random.stateless_normal([5, 3], [1, 2])
    expected = x
    for once in layer.rep:
        expected = tf.tanh(once.sub[0](expected))
    np.testing.assert_array_equal(layer(x), expected)
    weights = [once.sub[0].vars.w.numpy() for once in layer.rep]
    assert len({w.tobytes() for w in weights}) == 3
    assert list(layer.VariablePaths())[2:4] == [
        "seq/rep_1/sub_0/w",
        "seq/rep_1/sub_0/b",
    ]
    once = SequentialLayer.FPropMeta(p.Copy().Set(repeat=1), (5, 3))
    assert SequentialLayer.FPropMeta(p, (5, 3)).flops == 3 * once.flops


def test_what_is_repeated_inherits_through_it() -> None:
    p = SequentialLayer.Params().Set(sub=[dense(3, 3)], repeat=2, random_seed=7)
    outer = sequence(p.Set(dtype=tf.float64, fprop_dtype=tf.bfloat16))
    for once in outer.sub[0].rep:
        q = once.sub[0].params
        assert (q.dtype, q.fprop_dtype) == (tf.float64, tf.bfloat16)
        assert q.random_seed == 7


@pytest.mark.parametrize("repeat", [0, -1, True, 2.0, "2", None])
def test_impossible_repetitions_are_refused(repeat: Any) -> None:
    p = SequentialLayer.Params().Set(name="seq", repeat=repeat)
    with pytest.raises(ValueError, match=rf"repeat.*\bseq\b.*{repeat!r}"):
        p.Instantiate()


def test_outputs_as_args() -> None:
    assert as_args([1, 2]) == as_args((1, 2)) == (1, 2)
    assert as_args(None) == (None,)
    assert as_args(NestedMap(a=1)) == (NestedMap(a=1),)
