"""Contents and calls of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserAttributeError,
    UserIndexError,
    UserKeyError,
    UserTypeError,
)
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from tests.layers.built_layers import SumLayer, built, family, leaf
from tests.support.errors import fails


def test_paths_come_from_names_and_parents() -> None:
    layer = family()
    assert list(layer.VariablePaths()) == [
        "root/scale",
        *("root/one/w", "root/one/b"),
        *("root/some_0/w", "root/some_0/b", "root/second/w", "root/second/b"),
        *("root/by_key_a/w", "root/by_key_a/b", "root/by_key_b/w", "root/by_key_b/b"),
    ]
    assert layer.some[1].parent is layer
    assert layer.some[1].path == "root/second"
    assert layer.parent is None
    assert layer.children.by_key.a is layer.by_key.a
    assert next(iter(layer.Descendants())) is layer


def test_vars_and_theta_mirror_the_tree() -> None:
    layer = family()
    assert layer.vars.some[1].w is layer.some[1].vars.w
    assert layer.vars.by_key.a.b is layer.by_key.a.vars.b
    tf.nest.map_structure(np.testing.assert_array_equal, layer.vars, layer.theta)
    assert layer.accumulators.sums.total == tf.TensorSpec([2], tf.float32)
    assert not layer.accumulators.one


def test_descendants_are_found_by_path() -> None:
    layer = family()
    assert layer.GetDescendant("") is layer
    assert layer.GetDescendant("one") is layer.one
    assert layer.GetDescendant("some[1]") is layer.some[1]
    assert layer.GetDescendant("by_key.a") is layer.by_key.a
    assert layer.GetDescendant("some[-1]") is layer.some[1]
    assert layer.GetDescendant("some") is layer.some
    assert layer.GetDescendant("by_key") == layer.by_key


@pytest.mark.parametrize(
    ("path", "kind", "got", "expected"),
    [
        ("ones", UserKeyError, "ones", "one of by_key, one, some, sums"),
        ("some[2]", UserIndexError, 2, "an index of 2 items"),
        ("one.w", UserKeyError, "w", "one of no keys"),
        ("one[0]", UserKeyError, 0, "one of no keys"),
    ],
)
def test_unknown_descendants(path: str, kind: Any, got: Any, expected: str) -> None:
    whole = f"root.GetDescendant({path!r})"
    with fails(kind, path=whole, got=got, expected=expected):
        family().GetDescendant(path)


def test_a_name_in_a_list_leads_to_no_descendant() -> None:
    with fails(UserTypeError, path="root.GetDescendant('some.first')"):
        family().GetDescendant("some.first")
    with fails(got="some[1"):
        family().GetDescendant("some[1")


def test_an_unknown_attribute_names_the_children() -> None:
    with pytest.raises(AttributeError, match=r"BuiltLayer.*'ome'.*\['by_key'.*'some'"):
        _ = family().ome


def test_params_of_a_layer_are_its_own() -> None:
    p = leaf(name="root")
    layer = p.Instantiate()
    p.output_dim = 7
    assert layer.params.output_dim == 1


def test_functions_are_replaced_if_asked() -> None:
    layer = family()
    layer.AddFunction("f", lambda: 1)
    with fails(UserAttributeError, path="root.fns", got="f"):
        layer.AddFunction("f", lambda: 2)
    assert layer.fns.f() == 1
    layer.AddFunction("f", lambda: 3, replace=True)
    assert layer.fns.f() == 3


def test_calls_use_the_present_values_and_take_keywords() -> None:
    layer = leaf(name="root").Instantiate()
    x = tf.ones([3, 2])
    before = layer.FProp(layer.theta, x)
    np.testing.assert_array_equal(layer(x), before)
    np.testing.assert_array_equal(layer.FPropDefaultTheta(inputs=x), before)
    layer.vars.b.assign([5.0])
    np.testing.assert_allclose(layer(inputs=x), before + 5.0)


def test_a_layer_without_fprop_says_so() -> None:
    layer = built(None)
    with pytest.raises(NotImplementedError, match="BuiltLayer.FProp"):
        layer()


def test_operations_carry_the_names_of_layers() -> None:
    layer = family()
    with tf.Graph().as_default() as graph, tf.name_scope(layer.params.name):
        layer.one.FProp(NestedMap(w=tf.ones([2, 1]), b=tf.ones([1])), tf.ones([3, 2]))
    assert any(op.name.startswith("root/one/") for op in graph.get_operations())


def test_accumulated_values_go_to_the_context_alone() -> None:
    layer = SumLayer.Params().Set(name="root").Instantiate()
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    for context in (ForwardContext(), ForwardContext()):
        with context, tf.GradientTape() as tape:
            tape.watch(x)
            layer(x)
            share = context.accumulated["root/total"]
        np.testing.assert_array_equal(share, [4.0, 6.0])
        assert tape.gradient(share, x) is None
    layer(x)  # Without a context the value is dropped.
    assert not layer.received


def test_invalid_values_are_not_accumulated() -> None:
    layer = SumLayer.Params().Set(name="root").Instantiate()
    with fails(path="root", got="totals"):
        layer.Accumulate("totals", tf.zeros([2]))
    with fails(path="root/total", got=[3]):
        layer.Accumulate("total", tf.zeros([3]))
