"""Layers one after another, some of whose outputs travel along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.feature_extraction import FeatureExtractionLayer, FetchLayer
from lingvo_pipe.layers.sequential import SequentialLayer, as_args
from lingvo_pipe.nested_map import NestedMap


def inputs() -> tf.Tensor:
    return tf.random.stateless_normal([4, 3], [1, 2])


class DoubleLayer(BaseLayer):
    """x -> (x, 2·x)."""

    def FProp(self, theta: NestedMap, x: Any) -> Any:
        return x, 2 * x

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        return NestedMap(flops=1, out_shapes=(shapes[0], shapes[0]))


class AddLayer(BaseLayer):
    """(x, y) -> NestedMap."""

    def FProp(self, theta: NestedMap, x: Any, y: Any) -> NestedMap:
        return NestedMap(sum=x + y, absent=None)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        out = NestedMap(sum=shapes[0], absent=None)
        return NestedMap(flops=2, out_shapes=(out,))


def net() -> list[InstantiableParams]:
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3, activation="TANH")
    return [
        dense.Copy().Set(name="first"),
        FetchLayer.Params().Set(name="here"),
        dense.Copy(),
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
    metas = [m.FPropMeta(m.params, (4, 3)) for m in (whole, layer)]
    assert metas[0] == metas[1]


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
    meta = FeatureExtractionLayer.FPropMeta(
        layer.params, (4, 3), *[(5, i) for i in range(num_act_inputs)]
    )
    shapes = dict.fromkeys(by_name, (4, 3)) | {"add": meta.out_shapes[0]}
    assert meta.out_shapes == (
        NestedMap(sum=(4, 3), absent=None),
        *[(5, i) for i in range(num_act_inputs)],
        *[shapes[name] for name in fetched],
    )


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
    meta = FeatureExtractionLayer.FPropMeta(p, (1,), (2,))
    assert (meta.flops, meta.out_shapes) == (0, ((1,), (2,)))


def test_names_get_the_prefix() -> None:
    layer = extract(variable_name_prefix="s1_", act_fetch_layers=["s1_sub_2"])
    names = [sub.params.name for sub in layer.sub]
    assert names == ["s1_first", "s1_here", "s1_sub_2", "s1_double", "s1_add"]
    assert "features/s1_sub_2/w" in layer.VariablePaths()
    assert_same(layer(inputs())[1], outputs_of_layers(layer)["s1_sub_2"])


def test_a_fetch_layer_hands_on_what_it_is_given() -> None:
    layer = FetchLayer.Params().Set(name="here").Instantiate()
    x = inputs()
    assert_same(layer(x, None, NestedMap(a=x)), (x, None, NestedMap(a=x)))
    assert layer(x) is x


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        ({"num_act_inputs": -1}, "num_act_inputs.*-1"),
        (
            {"num_act_inputs": 1, "act_fetch_layers": ["here"], "num_act_outputs": 1},
            r"num_act_outputs.*act_fetch_layers.*\b2\b.*\b1\b",
        ),
        ({"act_fetch_layers": ["frist"]}, "act_fetch_layers.*'frist'.*'first'"),
        (
            {"variable_name_prefix": "s1_", "act_fetch_layers": ["first"]},
            "act_fetch_layers.*'first'.*'s1_first'",
        ),
    ],
)
def test_activations_that_do_not_add_up_are_refused(params: dict, tokens: str) -> None:
    with pytest.raises(ValueError, match=f"features.*{tokens}"):
        extract(**params)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"num_act_outputs.*\b7\b.*'x'.*'y'"):
        extract(act_fetch_layers=["x", "y"], num_act_outputs=7)


def test_too_few_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_act_inputs.*\b2\b.*features.*\b2\b"):
        extract(num_act_inputs=2)("x", "a")
