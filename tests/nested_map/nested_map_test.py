"""NestedMap as a dict, as a tree, and by key."""

from __future__ import annotations

import collections
import copy
import dataclasses
import logging
import pickle
import random
import subprocess
import sys
from typing import Any

import pytest

from lingvo_pipe.core.errors import (
    UserAttributeError,
    UserError,
    UserKeyError,
    UserNameError,
)
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails

Point = collections.namedtuple("Point", ["x", "y"])


def random_tree(rng: random.Random, depth: int = 3) -> Any:
    """Returns a random tree; a NestedMap at the root."""
    names = rng.sample(["a", "b", "c", "loss", "_x", "B2", "class"], rng.randrange(4))
    children = [
        random_tree(rng, depth - 1) if depth and rng.random() < 0.6 else rng.random()
        for _ in names
    ]
    kind = rng.randrange(4) if depth < 3 else 0
    if kind == 1:
        return children
    if kind == 2:
        return {f"any key {name}": x for name, x in zip(names, children, strict=True)}
    return NestedMap(zip(names, children, strict=True))


@pytest.fixture(params=range(40))
def tree(request: pytest.FixtureRequest) -> NestedMap:
    return random_tree(random.Random(request.param))


def sample() -> NestedMap:
    return NestedMap(
        b=NestedMap(z=1, a=[2, (3, Point(4, 5))]), a=6, c={"odd key": 7, "d": [8]}
    )


SAMPLE_ITEMS = [
    ("a", 6),
    ("b.a[0]", 2),
    ("b.a[1]", (3, Point(4, 5))),
    ("b.z", 1),
    ("c.d[0]", 8),
    ("c['odd key']", 7),
]


# ---- As a dict.


def test_items_are_attributes() -> None:
    m = NestedMap({"a": 1}, b=2)
    m.c = 3
    m["_class2"] = 4
    assert (m.a, m["b"], m["c"], m._class2) == (1, 2, 3, 4)
    del m.a, m["b"]
    assert m == {"c": 3, "_class2": 4}


@pytest.mark.parametrize("bad", [("c",), "c", 5, ("not a key", 1), ("items", 1)])
def test_a_failed_update_sets_nothing(bad: Any) -> None:
    m = NestedMap(a=1)
    with pytest.raises((TypeError, ValueError)):
        m.update([("a", 2), ("b", 3), bad])
    assert m == {"a": 1}


def test_unknown_attributes_are_answered_by_the_known_ones() -> None:
    m = NestedMap(loss=1, label=2)
    reads: list[tuple[Any, type[UserError]]] = [
        (lambda: m.labels, UserAttributeError),
        (lambda: delattr(m, "labels"), UserAttributeError),
        (lambda: m["labels"], UserKeyError),
    ]
    for read, kind in reads:
        with fails(kind, got="labels", hint="Did you mean 'label'?") as info:
            read()
        assert "label, loss" in info.value.expected
    with fails(UserAttributeError, got="a"):
        NestedMap().a  # noqa: B018
    assert not hasattr(m, "__array__")
    assert m.get("b") is None


@pytest.mark.parametrize("key", ["a b", "a.b", "1a", "", "a\n", "é", 1, None, ()])
def test_keys_are_whole_identifiers(key: Any) -> None:
    for attempt in every_way_to_add(key):
        with fails(UserNameError, got=key):
            attempt()


@pytest.mark.parametrize("key", ["keys", "Flatten", "__init__"])
def test_keys_do_not_shadow_methods(key: str) -> None:
    for attempt in every_way_to_add(key):
        with fails(UserNameError, got=key, hint=f"Call it '{key}_'."):
            attempt()


def every_way_to_add(key: Any) -> list[Any]:
    m = NestedMap()
    return [
        lambda: NestedMap({key: 1}),
        lambda: NestedMap([(key, 1)]),
        lambda: m.__setitem__(key, 1),
        lambda: m.update({key: 1}),
        lambda: m.setdefault(key, 1),
        lambda: m | {key: 1},
        lambda: m.__ior__({key: 1}),
        lambda: NestedMap.fromkeys([key]),
        lambda: m.Update({key: 1}),
        lambda: NestedMap.FromNestedDict({key: 1}),
    ]


def test_iteration_is_in_sorted_order() -> None:
    m = NestedMap(c=1, a=2, b=3)
    assert list(m) == list(m.keys()) == ["a", "b", "c"]
    assert list(reversed(m)) == ["c", "b", "a"]
    assert list(m.values()) == [2, 3, 1]
    assert list(m.items()) == [("a", 2), ("b", 3), ("c", 1)]
    assert repr(m) == "NestedMap(a=2, b=3, c=1)"


def test_dict_methods_make_nested_maps() -> None:
    m = NestedMap(a=1)
    m |= {"b": 2}
    assert m.setdefault("a", 5) == 1
    assert m.setdefault("c", 5) == 5
    for made in (m.copy(), m | {}, copy.copy(m), NestedMap.fromkeys("abc", 0) | m):
        assert type(made) is NestedMap
        assert made == m
        made.a = 9
    assert m.a == 1


# ---- As a tree.


def test_leaves_and_their_keys() -> None:
    m = sample()
    assert m.FlattenItems() == SAMPLE_ITEMS
    assert m.Flatten() == [leaf for _, leaf in SAMPLE_ITEMS]
    assert m.Keys() == [key for key, _ in SAMPLE_ITEMS]


def test_pack_is_the_inverse_of_flatten(tree: NestedMap) -> None:
    assert tree.Pack(tree.Flatten()) == tree
    values = list(range(len(tree.Flatten())))
    packed = tree.Pack(values)
    assert packed.Flatten() == values
    assert packed.IsCompatible(tree)
    assert tree.IsCompatible(packed)


def test_all_methods_visit_the_same_leaves_in_the_same_order(tree: NestedMap) -> None:
    seen: list[tuple[str, Any]] = []
    tree.TransformWithKey(lambda key, leaf: seen.append((key, leaf)))
    assert seen == tree.FlattenItems()
    assert tree.Transform(lambda x: x + 1).Flatten() == [x + 1 for x in tree.Flatten()]
    assert [tree.GetItem(key) for key in tree.Keys()] == tree.Flatten()
    assert all(map(tree.Has, tree.Keys()))
    assert len(tree.DebugString().splitlines()) == len(tree.Keys())


@pytest.mark.parametrize("difference", [-1, 1])
def test_pack_needs_one_value_a_leaf(difference: int) -> None:
    count = len(SAMPLE_ITEMS) + difference
    with fails(path="NestedMap.Pack", got=f"{count} values"):
        sample().Pack([0] * count)


def test_filter_keeps_the_leaves_chosen(tree: NestedMap) -> None:
    assert tree.Filter(lambda leaf: True) == tree
    assert tree.Filter(lambda leaf: False).Flatten() == []
    filtered = tree.Filter(lambda leaf: leaf > 0.5)
    assert type(filtered) is NestedMap
    assert filtered.Flatten() == [leaf for leaf in tree.Flatten() if leaf > 0.5]


def test_filter_by_key() -> None:
    m = sample()
    m.e, m.f = [], NestedMap(g=[NestedMap()])
    assert m.FilterKeyVal(lambda key, leaf: "[" in key and leaf != 2) == NestedMap(
        b=NestedMap(a=[(3, Point(4, 5))]), c={"odd key": 7, "d": [8]}, e=[], f=m.f
    )
    assert NestedMap(a=1).Filter(lambda leaf: False) == NestedMap()


@pytest.mark.parametrize("leaf", [(), (1, [2]), (NestedMap(a=1),), Point(1, {"b": 2})])
def test_tuples_are_leaves(leaf: Any) -> None:
    m = NestedMap(a=leaf, b=[leaf, 3])
    assert m.Flatten() == [leaf, leaf, 3]
    assert m.Keys() == ["a", "b[0]", "b[1]"]
    assert m.Pack([0, leaf, 2]) == NestedMap(a=0, b=[leaf, 2])
    assert m.Transform(type) == NestedMap(a=type(leaf), b=[type(leaf), int])
    assert m.Filter(lambda x: x != 3) == NestedMap(a=leaf, b=[leaf])
    assert m.DeepCopy().b[0] is leaf
    assert m.DebugString().splitlines()[0].startswith("a       ")


def test_a_tuple_in_a_debug_string_shows_plain_dicts() -> None:
    m = NestedMap(a=(1, NestedMap(c=2, b="x")), p=Point(NestedMap(), 5))
    assert m.DebugString() == "a    (1, {'b': 'x', 'c': 2})\np    Point(x={}, y=5)"


@pytest.mark.parametrize(
    ("a", "b", "compatible"),
    [
        (NestedMap(a=1), NestedMap(a=None), True),
        (NestedMap(a=NestedMap(b=1)), {"a": {"b": 2}}, True),
        (NestedMap(a=1), NestedMap(b=1), False),
        (NestedMap(a=1), NestedMap(a=[1]), False),
        (NestedMap(a=[1]), NestedMap(a=1), False),
        (NestedMap(a=[1]), NestedMap(a=(1,)), False),
        (NestedMap(a=(1,)), NestedMap(a=2), True),
        (NestedMap(), NestedMap(a=[NestedMap()]), True),
        (NestedMap(a=[1]), NestedMap(a=[1, 2]), False),
        (NestedMap(a=[]), NestedMap(a=NestedMap()), True),
        (NestedMap(a=Point(1, 2)), NestedMap(a=NestedMap(x=1, y=2)), False),
    ],
)
def test_is_compatible(a: NestedMap, b: Any, compatible: bool) -> None:
    assert a.IsCompatible(b) is compatible


def test_a_deep_copy_shares_leaves_only() -> None:
    class Leaf:
        pass

    m = NestedMap(a=[NestedMap(b=Leaf())], c=collections.OrderedDict(d=Leaf()))
    for made in (m.DeepCopy(), copy.deepcopy(m)):
        assert made == m
        assert made.a is not m.a
        assert made.a[0] is not m.a[0]
        assert type(made.c) is collections.OrderedDict
        assert made.a[0].b is m.a[0].b


def test_pickle(tree: NestedMap) -> None:
    assert pickle.loads(pickle.dumps(tree)) == tree


# ---- Merging and conversion.


def test_set_rebuilds_any_map_from_its_leaves(tree: NestedMap) -> None:
    shown = repr(tree.ToNestedDict())
    if any(text in shown for text in ("any key", "{}", "[]")):
        return  # Plain dicts and empty nodes cannot be built leaf by leaf.
    made = NestedMap()
    for key, leaf in tree.FlattenItems():
        made.Set(key, leaf)
    assert made.FlattenItems() == tree.FlattenItems()


def test_dataclasses_become_maps() -> None:
    @dataclasses.dataclass
    class Inner:
        x: int

    @dataclasses.dataclass
    class Outer:
        inner: list[Inner]
        y: dict

    made = NestedMap.FromNestedDataclass(Outer([Inner(1)], {"z": 2}))
    assert made == {"inner": [{"x": 1}], "y": {"z": 2}}
    assert (made.inner[0].x, made.y.z) == (1, 2)
    with pytest.raises(TypeError):
        NestedMap.FromNestedDataclass(3)


def test_dir_has_the_keys_of_leaves() -> None:
    assert {"a", "a.b[0]", "Flatten"} <= set(dir(NestedMap(a=NestedMap(b=[1]))))


def test_conversion_there_and_back(tree: NestedMap) -> None:
    plain = tree.ToNestedDict()
    assert type(plain) is dict
    assert "NestedMap" not in repr(plain)
    assert plain == tree
    if "any key" not in repr(plain):
        back = NestedMap.FromNestedDict(plain)
        assert type(back) is NestedMap
        assert "{" not in repr(back)
        assert back == tree


def test_from_nested_dict_takes_any_tree() -> None:
    converted = NestedMap.FromNestedDict([Point({"a": 1}, 2), 3])
    assert converted[0].x.a == 1
    assert NestedMap.FromNestedDict(3) == 3


# ---- Looks.


def test_debug_string_and_log(caplog: pytest.LogCaptureFixture) -> None:
    m = NestedMap(b=NestedMap(long=1), a=2)
    assert m.DebugString() == "a         2\nb.long    1"
    with caplog.at_level(logging.DEBUG):
        m.VLog()
        m.VLog(1, "theta: ")
    assert [r.levelname for r in caplog.records] == ["INFO"] * 2 + ["DEBUG"] * 2
    assert caplog.messages[0].endswith("nmap:  a         2")
    assert caplog.messages[3] == "theta:  b.long    1"


def test_the_module_imports_nothing_heavy() -> None:
    program = (
        "import sys, lingvo_pipe.nested_map;"
        "assert not {'tensorflow', 'numpy', 'lingvo_pipe.hyperparams'} & {*sys.modules}"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
