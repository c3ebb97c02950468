"""Layers declared as Lingvo's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer, IsLayerParams
from lingvo_pipe.layers.core.construction import LayerType
from lingvo_pipe.layers.core.layer_tree import unregularized_paths
from lingvo_pipe.layers.core.tied_variables import tying
from lingvo_pipe.layers.core.weights import (
    SKIP_LP_REGULARIZATION,
    WeightInit,
    WeightParams,
)
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.built_layers import SumLayer, built, leaf
from tests.layers.lingvo_layers import Projection
from tests.support.errors import fails


class Derived(Projection):
    """Creates another variable, from what its own `__init__` sets."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.shape = [self.params.dim]
        self.order.append("derived")

    def _CreateLayerVariables(self) -> None:
        super()._CreateLayerVariables()
        skipped = WeightParams(
            self.shape, WeightInit.Constant(), collections=[SKIP_LP_REGULARIZATION]
        )
        self.CreateVariable("b", skipped)
        self.CreateVariable("count", WeightParams([]), trainable=False)
        self.CreateVariable("mean", WeightParams([], collections=["moving_vars"]))


def test_variables_are_created_once_after_the_most_derived_init() -> None:
    layer = Derived.Params().Set(name="x").Instantiate()
    assert layer.order == ["init", "derived", "variables"]
    assert list(layer.VariablePaths()) == ["x/w", "x/b", "x/count", "x/mean"]
    assert layer.vars.w.shape == [4, 4]


def test_a_child_s_variables_are_created_before_its_parent_s() -> None:
    created: list[str] = []

    class Noting(Projection):
        def _CreateLayerVariables(self) -> None:
            created.append(self.path)

    Noting.Params().Set(name="x", sub=Noting.Params()).Instantiate()
    assert created == ["x/sub", "x"]


def test_values_do_not_depend_on_where_a_variable_is_created() -> None:
    early = built(lambda layer: layer.CreateVariable("w", WeightParams([4, 4])))
    late = Projection.Params().Set(name="root").Instantiate()
    np.testing.assert_array_equal(early.vars.w, late.vars.w)


def test_params_can_be_changed_until_the_layer_is_complete() -> None:
    p = Projection.Params().Set(name="x")
    layer = p.Instantiate()
    assert (p.dim, layer.params.dim) == (3, 4)
    assert layer.params.IsImmutable()


def test_collections_decide_on_training_and_weight_decay() -> None:
    p = Derived.Params().Set(name="x", sub=Derived.Params())
    layer = p.Instantiate()
    assert unregularized_paths(layer) == {"x/b", "x/sub/b"}
    trainable = {k for k, v in layer.VariablePaths().items() if v.trainable}
    assert trainable == {"x/w", "x/b", "x/sub/w", "x/sub/b"}


@pytest.mark.parametrize("declared", [False, True])
def test_options_of_a_variable(declared: bool) -> None:
    """A `trainable` of False, in the declaration or as an option, is enough."""
    weight, mean = WeightParams([], trainable=declared), tf.VariableAggregation.MEAN
    layer = built(lambda x: x.CreateVariable("v", weight, not declared, mean))
    assert not layer.vars.v.trainable
    assert layer.vars.v.aggregation == mean


@pytest.mark.parametrize(
    ("nest", "paths"),
    [
        ([leaf(), leaf()], ["c_0", "c_1"]),
        ((leaf(), leaf(name="own")), ["c_0", "own"]),
        ({"b": leaf(), "a": leaf()}, ["c_a", "c_b"]),
        (NestedMap(a=leaf()), ["c_a"]),
        ([[leaf(), leaf()], [leaf()]], ["c_0_0", "c_0_1", "c_1_0"]),
        ({"x": [leaf()], "y": {"z": leaf()}}, ["c_x_0", "c_y_z"]),
        ([], []),
    ],
)
def test_children_in_any_nest(nest: Any, paths: list[str]) -> None:
    layer = built(lambda layer: layer.CreateChildren("c", nest))
    assert [x.path for x in layer.Descendants()] == [
        "root",
        *(f"root/{p}" for p in paths),
    ]
    tf.nest.map_structure(np.testing.assert_array_equal, layer.vars, layer.theta)
    assert len(tf.nest.flatten(layer.theta)) == 2 * len(paths)
    assert layer.accumulators.c is not layer.theta.c


def test_deep_nests_are_walked() -> None:
    p = SumLayer.Params()
    layer = built(lambda layer: layer.CreateChildren("c", [[p, leaf()], {"k": p}]))
    assert layer.GetDescendant("c[0][0]") is layer.c[0][0]
    assert layer.GetDescendant("c[1].k") is layer.c[1].k
    sums = {"root/c_0_0/total": 7, "root/c_1_k/total": 8}
    layer.PostTrainingStepUpdate(layer.AccumulatedTree(sums))
    assert (layer.c[0][0].received, layer.c[1].k.received) == ([7], [8])


def test_names_with_a_leading_underscore() -> None:
    def build(layer: BaseLayer) -> None:
        layer.CreateChild("_hidden", leaf())
        layer.CreateVariable("_w", WeightParams([2]))

    layer = built(build)
    assert list(layer.VariablePaths())[:2] == ["root/_w", "root/_hidden/w"]
    np.testing.assert_array_equal(layer._hidden.vars.w, layer.theta._hidden.w)
    root = FCLayer.Params().Set(name="_root", input_dim=2, output_dim=1).Instantiate()

    @tf.function(autograph=False)
    def run() -> Any:
        return layer._hidden(tf.ones([1, 2])), root(tf.ones([1, 2]))

    assert all(y.shape == [1, 1] for y in run())


class Broken(Projection):
    """A layer whose properties have mistakes."""

    @property
    def twice(self) -> Any:
        return self.onec * 2

    @property
    def early(self) -> Any:
        return self.params.no_such_param


@pytest.mark.parametrize(
    ("name", "unknown"),
    [("twice", "onec"), ("early", "no_such_param"), ("missing", "missing")],
)
def test_a_mistake_in_a_property_is_shown(name: str, unknown: str) -> None:
    layer: Any = Broken.Params().Set(name="x").Instantiate()
    with pytest.raises(AttributeError, match=f"'{unknown}'"):
        getattr(layer, name)


def test_values_are_cast_to_the_dtype_of_the_computation() -> None:
    layer = Projection.Params().Set(name="x", fprop_dtype="bfloat16").Instantiate()
    given = NestedMap(a=tf.ones([2]), b=[None, tf.ones([1], tf.int32)], c=np.float64(2))
    cast = layer._CastToFPropDtype(given)
    assert (cast.a.dtype, cast.c.dtype) == (tf.bfloat16, tf.bfloat16)
    assert cast.b[0] is None
    assert cast.b[1].dtype == tf.int32
    assert layer(tf.ones([1, 4])).dtype == tf.bfloat16


def test_params_of_layers_are_recognized() -> None:
    assert IsLayerParams(FCLayer.Params())
    for other in (InstantiableParams(), InstantiableParams(dict), FCLayer, None):
        assert not IsLayerParams(other)


class Widening(BaseLayer):
    """Gives its children a param of its own."""

    @staticmethod
    def CopyBaseParams(
        from_params: InstantiableParams, to_params: InstantiableParams
    ) -> InstantiableParams:
        BaseLayer.CopyBaseParams(from_params, to_params)
        return to_params.Set(output_dim=5)

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("fc", leaf())


def test_a_layer_may_decide_what_its_children_inherit() -> None:
    p = Widening.Params().Set(name="x", random_seed=3)
    layer: Any = p.Instantiate()
    assert layer.fc.vars.w.shape == [2, 5]
    assert layer.fc.params.random_seed == 3


class Renaming(Projection):
    """Changes its name, which is in its path already."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.params.name = "other"


def test_a_layer_must_not_change_its_name() -> None:
    with fails(path="x", got="other"):
        Renaming.Params().Set(name="x").Instantiate()


def test_a_tied_variable_is_regularized_nowhere_if_one_path_says_so() -> None:
    skipped = WeightParams([2], collections=[SKIP_LP_REGULARIZATION])

    def build(layer: BaseLayer) -> None:
        layer.CreateVariable("a", WeightParams([2]))
        layer.CreateVariable("b", skipped)

    with tying({"b": "a"}, "root"):
        layer = built(build)
    assert list(layer.VariablePaths()) == ["root/a"]
    assert unregularized_paths(layer) == {"root/a"}


@pytest.mark.parametrize(
    ("own", "of_child", "paths"),
    [
        (True, None, {"x/w", "x/sub/w"}),
        (True, False, {"x/w"}),
        (None, True, {"x/sub/w"}),
    ],
)
def test_a_layer_and_its_children_may_skip_regularization(
    own: Any, of_child: Any, paths: set[str]
) -> None:
    child = Projection.Params().Set(skip_lp_regularization=of_child)
    p = Projection.Params().Set(name="x", sub=child, skip_lp_regularization=own)
    assert unregularized_paths(p.Instantiate()) == paths


@pytest.mark.parametrize("name", LayerType.PARAM_HINTS)
def test_errors_say_what_params_of_lingvo_were_for(name: str) -> None:
    p, outer = Projection.Params(), FCLayer.Params()
    outer.Define("inner", p, "A layer within a layer.")
    changes: list[Callable[[], Any]] = [
        lambda: p.Set(**{name: None}),
        lambda: outer.Set(**{f"inner.{name}": 1}),
        lambda: setattr(p, name, None),
    ]
    for change in changes:
        with pytest.raises(AttributeError, match=name) as error:
            change()
        assert LayerType.PARAM_HINTS[name] in str(error.value)
    p.Define(name, 3, "A param of the user's own layer.")
    assert p.Get(name) == 3
