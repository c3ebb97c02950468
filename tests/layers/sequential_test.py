"""Layers in sequence, with and without activations carried along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.sequential import (
    FeatureExtractionLayer,
    FetchLayer,
    SeqLayer,
    SequentialLayer,
)
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails


class SwapLayer(BaseLayer):
    """(x, y) -> (y, x)."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> tuple[Any, Any]:
        return y, x


class JoinLayer(BaseLayer):
    """(x, y) -> NestedMap."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> NestedMap:
        return NestedMap(x=x, y=y)


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
    doubled = sequence(JoinLayer.Params(), DoubleLayer.Params())(1, 2)
    assert doubled == (NestedMap(x=1, y=2),) * 2


@pytest.mark.parametrize(
    ("args", "outputs"), [((), ()), ((1,), 1), ((1, 2), (1, 2)), ((None,), None)]
)
def test_no_layers_return_the_inputs(args: Any, outputs: Any) -> None:
    assert sequence()(*args) == outputs
    assert SeqLayer.Params().Set(name="net").Instantiate()(*args) == outputs


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


def test_outputs_as_args() -> None:
    assert as_args([1, 2]) == as_args((1, 2)) == (1, 2)
    assert as_args(None) == (None,)
    assert as_args(NestedMap(a=1)) == (NestedMap(a=1),)


def cells() -> list[InstantiableParams]:
    sizes = enumerate([(3, 5), (5, 4), (4, 2)])
    layers = [dense(*size).Set(name=f"fc{i}") for i, size in sizes]
    return [*layers, ActivationLayer.Params().Set(activation="TANH")]


def test_it_computes_what_a_sequence_of_all_does() -> None:
    x = tf.random.stateless_normal([4, 3], [1, 2])
    whole = SequentialLayer.Params().Set(name="net", sub=cells()).Instantiate()
    for num_before in range(5):
        before, after = cells()[:num_before], cells()[num_before:]
        p = SeqLayer.Params().Set(name="net", before_tpl=before, cell_tpl=after)
        layer = p.Instantiate()
        np.testing.assert_array_equal(layer(x), whole(x))
        assert list(layer.VariablePaths()) == list(whole.VariablePaths())


def test_children_are_named_by_position() -> None:
    p = SeqLayer.Params().Set(name="net", before_tpl=cells(), cell_tpl=cells()[3:])
    assert [layer.path for layer in p.Instantiate().Descendants()] == [
        *("net", "net/fc0", "net/fc1", "net/fc2", "net/before_3", "net/cells_0")
    ]


def inputs() -> tf.Tensor:
    return tf.random.stateless_normal([4, 3], [1, 2])


class DoubleLayer(BaseLayer):
    """x -> (x, x)."""

    def FProp(self, theta: NestedMap, x: Any) -> Any:
        return x, x


class AddLayer(BaseLayer):
    """(x, y) -> NestedMap."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> NestedMap:
        return NestedMap(sum=x + y, absent=None)


def net() -> list[InstantiableParams]:
    tanh = dense(3, 3).Set(activation="TANH")
    return [
        tanh.Copy().Set(name="first"),
        FetchLayer.Params().Set(name="here"),
        tanh.Copy(),
        DoubleLayer.Params().Set(name="double"),
        AddLayer.Params().Set(name="add"),
    ]


def extract(**params: Any) -> Any:
    p = FeatureExtractionLayer.Params().Set(name="features", sub=net(), **params)
    return p.Instantiate()


def outputs_of_layers(layer: Any) -> dict[str, Any]:
    outputs, found = inputs(), {}
    for sub in layer.sub:
        outputs = sub(*as_args(outputs))
        found[sub.params.name] = as_args(outputs)[0]
    return found


def assert_same(found: Any, expected: Any) -> None:
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_array_equal(a, b) if a is not None else b,
        found,
        expected,
    )


def test_without_activations_it_is_a_sequence() -> None:
    whole = SequentialLayer.Params().Set(name="features", sub=net()).Instantiate()
    layer = extract()
    assert list(layer.VariablePaths()) == list(whole.VariablePaths())
    assert_same(layer(inputs()), whole(inputs()))


@pytest.mark.parametrize(
    "fetched", [["here"], ["add", "first"], ["double", "double"], ["sub_2", "here"]]
)
@pytest.mark.parametrize("num_act_inputs", [0, 1, 2])
def test_activations_follow_the_outputs(
    fetched: list[str], num_act_inputs: int
) -> None:
    layer = extract(act_fetch_layers=fetched, num_act_inputs=num_act_inputs)
    by_name = outputs_of_layers(layer)
    given = ["a", "b"][:num_act_inputs]
    last, *activations = layer(inputs(), *given)
    assert_same(last, by_name["add"])
    assert activations[:num_act_inputs] == given
    expected = [by_name[name] for name in fetched]
    assert_same(activations[num_act_inputs:], expected)


def test_several_in_turn_collect_the_activations_of_all() -> None:
    whole = extract(act_fetch_layers=["first", "sub_2"])
    first = FeatureExtractionLayer.Params().Set(
        name="features", sub=net()[:2], act_fetch_layers=["first"], num_act_outputs=1
    )
    second = FeatureExtractionLayer.Params().Set(
        name="features",
        sub=[p.Set(name=p.name or "sub_2") for p in net()[2:]],
        num_act_inputs=1,
        act_fetch_layers=["sub_2"],
        num_act_outputs=2,
    )
    outputs = second.Instantiate()(*first.Instantiate()(inputs()))
    assert_same(outputs, whole(inputs()))
    assert len(outputs) == 3


def test_no_layers_hand_on_everything() -> None:
    p = FeatureExtractionLayer.Params().Set(name="none", num_act_inputs=1)
    assert p.Instantiate()("x", "y", "a") == ("x", "y", "a")
    assert p.Copy().Set(num_act_inputs=0).Instantiate()("x") == "x"


def test_names_get_the_prefix() -> None:
    layer = extract(variable_name_prefix="s1_", act_fetch_layers=["s1_sub_2"])
    names = [sub.params.name for sub in layer.sub]
    assert names == ["s1_first", "s1_here", "s1_sub_2", "s1_double", "s1_add"]
    assert "features/s1_sub_2/w" in layer.VariablePaths()
    assert_same(layer(inputs())[1], outputs_of_layers(layer)["s1_sub_2"])


def test_too_few_inputs_are_refused() -> None:
    with fails(path="features", got="2 inputs together"):
        extract(num_act_inputs=2)("x", "a")
