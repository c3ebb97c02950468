"""Construction of a layer: refused names and parts, and inherited params."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserAttributeError, UserNameError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.built_layers import BuiltLayer, built, family, leaf
from tests.support.cases import exhaustive
from tests.support.errors import fails

LEAF, WEIGHT, RULE = leaf(), WeightParams([1]), WeightInit.Xavier()


@pytest.mark.parametrize("name", ["", "a/b", "_", None, "ä"])
def test_a_layer_needs_a_name(name: Any) -> None:
    with fails(path="FCLayer.name", got=name):
        leaf(name=name).Instantiate()


# What a layer does in __init__, with path and value of the error.
REFUSED: list[tuple[Any, str, Any]] = [
    (lambda x: [x.CreateChild("a", LEAF) for _ in "12"], "root", "a"),
    (lambda x: x.CreateChildren("a", [[leaf(name="x")], leaf(name="x")]), "root", "x"),
    (
        lambda x: (x.CreateChildren("a", [LEAF]), x.CreateChild("a_0", LEAF)),
        "root",
        "a_0",
    ),
    (lambda x: (x.CreateVariable("a", WEIGHT), x.CreateChild("a", LEAF)), "root", "a"),
    (
        lambda x: (x.RegisterAccumulator("a", [1]), x.CreateVariable("a", WEIGHT)),
        "root",
        "a",
    ),
    (lambda x: x.CreateChild("FProp", LEAF), "root", "FProp"),
    (lambda x: x.CreateVariable("items", WEIGHT), "root", "items"),
    (lambda x: x.CreateVariable("a.b", WEIGHT), "root", "a.b"),
    (lambda x: x.RegisterAccumulator("a/b", [1]), "root", "a/b"),
    (lambda x: x.AddFunction("a b", abs), "root", "a b"),
    (lambda x: x.CreateVariable("v", WeightParams([2, 0])), "root/v", [2, 0]),
    (lambda x: x.RegisterAccumulator("v", [None]), "root/v", [None]),
    (lambda x: x.CreateVariable("v", [8, 8]), "root/v", [8, 8]),
    (lambda x: x.CreateVariable("v", RULE), "root/v", RULE),
    (lambda x: x.CreateVariable("v", WeightParams([8], 0.5)), "root/v", 0.5),  # type: ignore[arg-type]
    (lambda x: x.CreateChild("a", FCLayer), "root/a", FCLayer),
    (
        lambda x: x.CreateChild("a", leaf(name="b/c")),
        "FCLayer.name below 'root'",
        "b/c",
    ),
    (
        lambda x: x.CreateChildren("a", [LEAF], ["CPU:0"] * 2),
        "root/a.devices",
        "2 for 1 layers in a list",
    ),
    (
        lambda x: x.CreateChildren("a", {"b": LEAF}, ["CPU:0"]),
        "root/a.devices",
        "1 for 1 layers in a dict",
    ),
    (lambda x: (x.CreateChild("a", LEAF), x.__dict__.update(a=1)), "root.a", "both"),
]


@pytest.mark.parametrize(("build", "path", "got"), REFUSED)
def test_parts_that_are_refused(build: Any, path: str, got: Any) -> None:
    with fails(path=path, got=got):
        built(build)


@pytest.mark.parametrize(
    "hold",
    [lambda x: x, lambda x: (1, [x]), lambda x: {"b": x}, lambda x: NestedMap(b=[x])],
)
def test_a_layer_that_is_not_a_child_is_refused(hold: Any) -> None:
    with fails(path="root.kept", got="FCLayer 'stray'"):
        built(lambda x: x.__dict__.update(kept=hold(leaf(name="stray").Instantiate())))


def test_attributes_may_hold_children_under_other_names() -> None:
    def build(layer: Any) -> None:
        layer.CreateChild("one", leaf())
        layer.other = [layer.one]

    layer = built(build)
    assert layer.other == [layer.one]


@pytest.mark.parametrize(
    "extend",
    [
        lambda layer: layer.CreateChild("late", LEAF),
        lambda layer: layer.CreateChildren("late", [LEAF]),
        lambda layer: layer.CreateVariable("late", WEIGHT),
        lambda layer: layer.RegisterAccumulator("late", [1]),
    ],
)
def test_nothing_is_created_after_init(extend: Any) -> None:
    layer: Any = family()
    with fails(path="root/late"):
        extend(layer)
    layer._disable_create_child = False  # As Lingvo's tests write.
    extend(layer)
    with pytest.raises(AssertionError):
        extend(layer)


def test_lingvo_s_scopes_of_variables_are_refused() -> None:
    with fails(UserNameError, path="Scoped._child_variable_scope_override"):
        type(
            "Scoped", (BaseLayer,), {"_child_variable_scope_override": lambda self: {}}
        )
    with fails(UserAttributeError, got="child_variable_scope_override"):
        leaf().Set(child_variable_scope_override={"a": ["b"]})


def test_init_must_call_base_layers_init() -> None:
    class HastyLayer(BaseLayer):
        def __init__(self, params: InstantiableParams):
            self.CreateChild("one", leaf())
            super().__init__(params)

    with pytest.raises(AttributeError, match=r"super\(\)\.__init__.*HastyLayer"):
        HastyLayer.Params().Set(name="root").Instantiate()


@pytest.mark.parametrize(
    ("failing", "path"),
    [(FCLayer.Params(), "root/one/w"), (InstantiableParams(), "cls")],
)
def test_a_failed_child_leaves_no_parent_behind(
    failing: InstantiableParams, path: str
) -> None:
    if "name" not in failing:
        failing.Define("name", "", "")
    with fails(path=path):
        built(lambda layer: layer.CreateChild("one", failing))
    assert leaf(name="next").Instantiate().parent is None


def test_a_stray_layer_has_no_parent() -> None:
    made: list[Any] = []
    child = BuiltLayer.Params().Set(
        build=lambda layer: made.append(leaf(name="stray").Instantiate())
    )
    built(lambda layer: layer.CreateChild("one", child))
    assert (made[0].parent, made[0].path) == (None, "stray")


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        ({}, {}, (tf.float32, tf.float32)),
        ({"dtype": tf.float64}, {}, (tf.float64, tf.float64)),
        ({"fprop_dtype": tf.bfloat16}, {}, (tf.float32, tf.bfloat16)),
        ({"fprop_dtype": tf.bfloat16}, {"dtype": tf.float32}, (tf.float32, tf.float32)),
        (
            {"dtype": tf.bfloat16},
            {"dtype": tf.float32, "fprop_dtype": tf.bfloat16},
            (tf.float32, tf.bfloat16),
        ),
        ({"dtype": "float64"}, {"fprop_dtype": "half"}, (tf.float64, tf.float16)),
    ],
)
def test_dtypes_are_inherited_unless_set(
    parent: dict[str, Any], child: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    one = built(lambda layer: layer.CreateChild("one", leaf(**child)), **parent).one
    assert (one.params.dtype, one.params.fprop_dtype) == expected
    assert (one.vars.w.dtype, one.theta.w.dtype) == expected
    assert one(tf.ones([1, 2])).dtype == one.fprop_dtype == expected[1]


@pytest.mark.parametrize(
    ("params", "path", "got"),
    [
        ({"dtype": tf.int32}, "x.dtype", "int32"),
        ({"fprop_dtype": "int32"}, "x.fprop_dtype", "int32"),
        ({"random_seed": 0.5}, "x.random_seed", 0.5),
        ({"params_init": "foo"}, "x/w", "foo"),
    ],
)
def test_base_params_that_are_refused(params: Any, path: str, got: Any) -> None:
    with fails(path=path, got=got):
        leaf(name="x", **params).Instantiate()


def test_state_keeps_its_own_dtype() -> None:
    def build(layer: BaseLayer) -> None:
        layer.CreateVariable("count", WeightParams([1], dtype=tf.int64))
        layer.CreateVariable("mean", WeightParams([1], trainable=False))
        layer.CreateVariable("w", WeightParams([1]))

    dtypes = built(build, fprop_dtype=tf.bfloat16).theta.Transform(lambda x: x.dtype)
    assert dtypes == NestedMap(count=tf.int64, mean=tf.float32, w=tf.bfloat16)


def test_seed_and_init_are_inherited_unless_set() -> None:
    rule: Params = WeightInit.Constant(2.0)
    own = leaf(random_seed=5, params_init=WeightInit.Gaussian())
    first, second = built(
        lambda layer: layer.CreateChildren("some", [leaf(), own]),
        random_seed=3,
        params_init=rule,
    ).some
    assert (first.params.random_seed, first.params.params_init) == (3, rule)
    assert second.params.random_seed == 5
    np.testing.assert_array_equal(first.vars.w, [[2.0], [2.0]])
    assert second.params.params_init.method == "gaussian"
    assert leaf(name="x").Instantiate().params.random_seed == 0


DTYPES = [None, tf.float64, "bfloat16"]
CHOICES = [
    {"dtype": dtype, "fprop_dtype": fprop_dtype, "random_seed": seed}
    for dtype, fprop_dtype, seed in itertools.product(DTYPES, DTYPES, [None, 3])
]


def sequence(sub: InstantiableParams, choice: dict[str, Any]) -> InstantiableParams:
    return SequentialLayer.Params().Set(name="seq", sub=[sub], **choice)


@pytest.mark.parametrize(
    "outer", [CHOICES[5], *(exhaustive(CHOICES[i]) for i in (0, 9, 16))]
)
@pytest.mark.parametrize("parent", CHOICES)
def test_params_handed_down_make_the_same_layer_without_its_parent(
    parent: Any, outer: Any
) -> None:
    for own, init in itertools.product(CHOICES, [None, WeightInit.Constant(2.0)]):
        dense = FCLayer.Params().Set(input_dim=2, output_dim=2, **own)
        between = sequence(dense, parent).Set(params_init=init)
        handed_down = BaseLayer.CopyBaseParams(between, dense.Copy())
        within = sequence(between, outer).Instantiate().sub[0].sub[0]
        without = sequence(handed_down, outer).Instantiate().sub[0]
        assert within.params == without.params
