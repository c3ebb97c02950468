"""Construction of a layer: refused names and parts, and inherited params."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.built_layers import BuiltLayer, built, family, leaf


@pytest.mark.parametrize("name", ["", "a/b", "a b", "_", None, "ä"])
def test_a_layer_needs_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match=f"name.*FCLayer.*{name!r}"):
        leaf(name=name).Instantiate()


def test_an_invalid_name_of_a_child_names_the_parent() -> None:
    with pytest.raises(ValueError, match="FCLayer.*'root'.*'a/b'"):
        built(lambda layer: layer.CreateChild("one", leaf(name="a/b")))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda layer: [layer.CreateChild("one", leaf()) for _ in range(2)],
            "root.*'one'",
        ),
        (
            lambda layer: layer.CreateChildren("one", [leaf(name="x"), leaf(name="x")]),
            "root.*'x'",
        ),
        (
            lambda layer: [
                layer.CreateChildren("one", [leaf()]),
                layer.CreateChild("one_0", leaf()),
            ],
            "root.*'one_0'",
        ),
        (
            lambda layer: [
                layer.CreateVariable("one", WeightParams([1])),
                layer.CreateChild("one", leaf()),
            ],
            "root.*'one'",
        ),
        (
            lambda layer: [
                layer.RegisterAccumulator("one", [1]),
                layer.CreateVariable("one", WeightParams([1])),
            ],
            "root.*'one'",
        ),
        (lambda layer: layer.CreateChild("FProp", leaf()), "root.*'FProp'"),
        (lambda layer: layer.CreateVariable("a.b", WeightParams([1])), r"root.*'a\.b'"),
        (
            lambda layer: layer.CreateVariable("items", WeightParams([1])),
            "'items'.*'items_'",
        ),
        (lambda layer: layer.CreateChild("Flatten", leaf()), "root.*'Flatten'"),
        (lambda layer: layer.RegisterAccumulator("a/b", [1]), "root.*'a/b'"),
        (lambda layer: layer.AddFunction("a b", abs), "root.*'a b'"),
        (
            lambda layer: layer.CreateVariable("v", WeightParams([2, 0])),
            r"root/v.*\[2, 0\]",
        ),
        (
            lambda layer: layer.CreateVariable("v", [8, 8]),
            r"root/v.*WeightParams.*list.*\[8, 8\]",
        ),
        (
            lambda layer: layer.CreateVariable("v", WeightInit.Xavier()),
            r"root/v.*WeightParams.*\bParams\b",
        ),
        (
            lambda layer: layer.CreateVariable(
                "v",
                WeightParams([8], init=0.5),  # type: ignore[arg-type]
            ),
            r"root/v.*WeightInit.*float.*0\.5",
        ),
        (lambda layer: layer.RegisterAccumulator("v", [None]), r"root/v.*\[None\]"),
        (
            lambda layer: layer.CreateChild("one", leaf().Instantiate),
            r"root/one.*method.*TheLayer\.Params",
        ),
        (
            lambda layer: layer.CreateChildren("one", [leaf()], ["CPU:0", "CPU:1"]),
            r"devices.*root/one.*\b1\b.*list.*\b2\b",
        ),
        (
            lambda layer: layer.CreateChildren("one", {"a": leaf()}, ["CPU:0"]),
            r"devices.*root/one.*\b1\b.*dict",
        ),
        (
            lambda layer: [
                layer.CreateChild("one", leaf()),
                layer.__dict__.update(one=1),
            ],
            "attribute.*root.*'one'",
        ),
    ],
)
def test_parts_that_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(build)


@pytest.mark.parametrize(
    "hold",
    [
        lambda layer: layer,
        lambda layer: [layer],
        lambda layer: (1, [layer]),
        lambda layer: {"key": layer},
        lambda layer: NestedMap(key=[layer]),
    ],
)
def test_a_layer_that_is_not_a_child_is_refused(hold: Any) -> None:
    def build(layer: Any) -> None:
        layer.kept = hold(leaf(name="stray").Instantiate())

    with pytest.raises(ValueError, match="CreateChild.*root.*FCLayer.*'stray'.*'kept'"):
        built(build)


def test_attributes_may_hold_children_under_other_names() -> None:
    def build(layer: Any) -> None:
        layer.CreateChild("one", leaf())
        layer.other = [layer.one]

    layer = built(build)
    assert layer.other == [layer.one]


@pytest.mark.parametrize(
    "extend",
    [
        lambda layer: layer.CreateChild("late", leaf()),
        lambda layer: layer.CreateChildren("late", [leaf()]),
        lambda layer: layer.CreateVariable("late", WeightParams([1])),
        lambda layer: layer.RegisterAccumulator("late", [1]),
    ],
)
def test_nothing_is_created_after_init(extend: Any) -> None:
    layer = family()
    with pytest.raises(ValueError, match="__init__.*root.*'late'"):
        extend(layer)


def test_init_must_call_base_layers_init() -> None:
    class HastyLayer(BaseLayer):
        def __init__(self, params: InstantiableParams):
            self.CreateChild("one", leaf())
            super().__init__(params)

    with pytest.raises(AttributeError, match=r"super\(\)\.__init__.*HastyLayer"):
        HastyLayer.Params().Set(name="root").Instantiate()


@pytest.mark.parametrize("failing", [FCLayer.Params(), InstantiableParams()])
def test_a_failed_child_leaves_no_parent_behind(failing: InstantiableParams) -> None:
    if "name" not in failing:
        failing.Define("name", "", "")
    with pytest.raises(ValueError, match=r"root/one/w.*\[0, 0\]|cls = None"):
        built(lambda layer: layer.CreateChild("one", failing))
    assert leaf(name="next").Instantiate().parent is None


def test_a_stray_layer_has_no_parent() -> None:
    made = []
    child = BuiltLayer.Params().Set(
        build=lambda layer: made.append(leaf(name="stray").Instantiate())
    )
    built(lambda layer: layer.CreateChild("one", child))
    assert made[0].parent is None
    assert made[0].path == "stray"


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        ({}, {}, (tf.float32, tf.float32)),
        ({"dtype": tf.float64}, {}, (tf.float64, tf.float64)),
        ({"fprop_dtype": tf.bfloat16}, {}, (tf.float32, tf.bfloat16)),
        ({"fprop_dtype": tf.bfloat16}, {"dtype": tf.float32}, (tf.float32, tf.float32)),
        (
            {"fprop_dtype": tf.bfloat16},
            {"fprop_dtype": tf.float32},
            (tf.float32, tf.float32),
        ),
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
    layer = built(lambda layer: layer.CreateChild("one", leaf(**child)), **parent)
    one = layer.one
    assert (one.params.dtype, one.params.fprop_dtype) == expected
    assert (one.vars.w.dtype, one.theta.w.dtype) == expected
    assert one(tf.ones([1, 2])).dtype == one.fprop_dtype == expected[1]


@pytest.mark.parametrize("name", ["dtype", "fprop_dtype"])
def test_layers_compute_in_floating_point(name: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b.*int32"):
        leaf(name="root", **{name: tf.int32}).Instantiate()


def test_state_keeps_its_own_dtype() -> None:
    def build(layer: BaseLayer) -> None:
        layer.CreateVariable("count", WeightParams([1], dtype=tf.int64))
        layer.CreateVariable("mean", WeightParams([1], trainable=False))
        layer.CreateVariable("w", WeightParams([1]))

    theta = built(build, fprop_dtype=tf.bfloat16).theta
    dtypes = theta.Transform(lambda value: value.dtype)
    assert dtypes == NestedMap(count=tf.int64, mean=tf.float32, w=tf.bfloat16)


def test_an_invalid_init_is_refused() -> None:
    with pytest.raises(ValueError, match="x/w.*WeightInit.*str.*foo"):
        leaf(name="x", params_init="foo").Instantiate()


def test_seed_and_init_are_inherited_unless_set() -> None:
    rule: Params = WeightInit.Constant(2.0)
    layer = built(
        lambda layer: layer.CreateChildren(
            "some", [leaf(), leaf(random_seed=5, params_init=WeightInit.Gaussian())]
        ),
        random_seed=3,
        params_init=rule,
    )
    first, second = layer.some
    assert (first.params.random_seed, first.params.params_init) == (3, rule)
    assert second.params.random_seed == 5
    np.testing.assert_array_equal(first.vars.w, [[2.0], [2.0]])
    assert second.params.params_init.method == "gaussian"
    assert leaf(name="x").Instantiate().params.random_seed == 0


DTYPES = [None, tf.float64, "bfloat16"]
CHOICES = list(itertools.product(DTYPES, DTYPES, [None, 3]))
INITS = [None, WeightInit.Constant(2.0)]


def sequence(sub: InstantiableParams, choice: tuple) -> InstantiableParams:
    return with_choice(SequentialLayer.Params().Set(name="seq", sub=[sub]), choice)


def with_choice(p: InstantiableParams, choice: tuple) -> InstantiableParams:
    dtype, fprop_dtype, seed = choice
    return p.Set(dtype=dtype, fprop_dtype=fprop_dtype, random_seed=seed)


@pytest.mark.parametrize("outer", [CHOICES[0], CHOICES[5], CHOICES[9], CHOICES[16]])
@pytest.mark.parametrize("parent", CHOICES)
def test_params_handed_down_make_the_same_layer_without_its_parent(
    parent: Any, outer: Any
) -> None:
    for own, init in itertools.product(CHOICES, INITS):
        leaf = with_choice(FCLayer.Params().Set(input_dim=2, output_dim=2), own)
        between = sequence(leaf, parent).Set(params_init=init)
        within = sequence(between, outer).Instantiate().sub[0].sub[0]
        without = (
            sequence(BaseLayer.CopyBaseParams(between, leaf.Copy()), outer)
            .Instantiate()
            .sub[0]
        )
        assert within.params == without.params
