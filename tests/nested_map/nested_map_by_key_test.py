"""Values inside a NestedMap, read and set by keys such as `a.b[0].c`."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from lingvo_pipe.core.errors import (
    UserError,
    UserIndexError,
    UserKeyError,
    UserTypeError,
    UserValueError,
)
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails

Point = collections.namedtuple("Point", ["x", "y"])


def sample() -> NestedMap:
    return NestedMap(
        b=NestedMap(z=1, a=[2, (3, Point(4, 5))]), a=6, c={"odd key": 7, "d": [8]}
    )


def test_get_and_has() -> None:
    m = sample()
    m.none = None
    assert m.GetItem("b.a[-1][0]") == 3
    assert m.Get("b.z") == 1
    assert m.Get("b.nope") is None
    assert m.Get("b.a[9]", 5) == 5
    assert m.Get("a.b", 5) == 5
    assert m.Has("none")
    assert not m.Has("b.nope")
    m.numbers = {1: "a", 2: "b"}
    assert not m.Has("numbers.nope")


@pytest.mark.parametrize(
    ("key", "kind", "got"),
    [
        ("b.q", UserKeyError, "q"),
        ("b.a[2]", UserIndexError, 2),
        ("a.x", UserTypeError, 6),
        ("b.a.x", UserTypeError, sample().b.a),
    ],
)
def test_get_item_refuses(key: str, kind: type[UserError], got: Any) -> None:
    with fails(kind, path=key, got=got):
        sample().GetItem(key)


@pytest.mark.parametrize("key", ["b..a", "", "b.a[x]"])
def test_a_malformed_key_is_no_missing_one(key: str) -> None:
    for read in (sample().Get, sample().GetItem):
        with fails(UserValueError):
            read(key)


def test_set_creates_and_replaces() -> None:
    m = NestedMap()
    m.Set("a.b[0].c", 1)
    m.Set("a.b[1]", 2)
    m.Set("a.b[-1]", 3)
    m.Set("a.b[0].d", 4)
    assert m == {"a": {"b": [{"c": 1, "d": 4}, 3]}}
    assert type(m.a.b[0]) is NestedMap


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("b.a[3]", {"path": "b.a[3]", "got": 3}),
        ("n.e[1]", {"path": "n.e[1]", "got": 1}),
        ("n[-1]", {"path": "n[-1]", "got": -1}),
        ("a.b", {"path": "a.b", "got": 6}),
        ("a.b.c", {"path": "a.b.c", "got": 6}),
        ("b.a[1][0]", {"path": "b.a[1][0]", "got": (3, Point(4, 5))}),
        ("b.keys", {"got": "keys"}),
        ("n.keys", {"got": "keys"}),
        ("b a", {}),
    ],
)
def test_set_refuses_and_changes_nothing(key: str, fields: dict[str, Any]) -> None:
    m = sample()
    with fails(UserValueError, **fields):
        m.Set(key, 0)
    assert m == sample()


def test_get_slice() -> None:
    m = sample()
    assert m.GetSlice(["b.z", "a"]) == {"a": 6, "b": {"z": 1}}
    assert m.GetSlice([]) == {}
    with fails(UserKeyError, path="nope"):
        m.GetSlice(["a", "nope"])


# ---- Merging by key.


def test_union_and_update_merge_nested_maps() -> None:
    m = NestedMap(a=NestedMap(x=1, y=2), b=3)
    other = NestedMap(a=NestedMap(y=4, z=5), c=[6])
    union = {"a": {"x": 1, "y": 4, "z": 5}, "b": 3, "c": [6]}
    assert m.Union(other) == union
    assert m == {"a": {"x": 1, "y": 2}, "b": 3}
    assert m.Update(other) is m
    assert m == union


def test_update_merges_lists_and_plain_dicts() -> None:
    m = NestedMap(a=[1, 2, NestedMap(x=3)], b=NestedMap())
    m.Update({"a": [4, 5, {"y": 6}, 7], "b": {"c": {"d": 8}}, "e": (9,)})
    assert m == {"a": [4, 5, {"x": 3, "y": 6}, 7], "b": {"c": {"d": 8}}, "e": (9,)}
    assert type(m.b.c) is NestedMap
    m.Update({"a": [0]})
    assert m.a[:2] == [0, 5]


def test_union_shares_no_node() -> None:
    m = NestedMap(a=[NestedMap(x=1)], b=[])
    union = m.Union({"a": [{"y": 2}]})
    assert union == {"a": [{"x": 1, "y": 2}], "b": []}
    assert m == {"a": [{"x": 1}], "b": []}
