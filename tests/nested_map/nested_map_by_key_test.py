"""Values inside a NestedMap, read and set by keys such as `a.b[0].c`."""

from __future__ import annotations

import collections

import pytest

from lingvo_pipe.nested_map import NestedMap

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


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("b.q", KeyError, r"'b\.q'.*'q'.*a, z"),
        ("b.a[2]", IndexError, r"'b\.a\[2\]'.*\b2\b.*\b2\b"),
        ("a.x", TypeError, r"'a\.x'.*int.*'x'"),
        ("b.a.x", TypeError, r"'b\.a\.x'.*list.*'x'"),
        ("b..a", ValueError, r"'b\.\.a'"),
        ("", ValueError, "''"),
        ("b.a[x]", ValueError, r"'b\.a\[x\]'"),
    ],
)
def test_get_item_refuses(key: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sample().GetItem(key)


def test_a_malformed_key_is_no_missing_one() -> None:
    with pytest.raises(ValueError, match=r"'b\.\.a'"):
        sample().Get("b..a", 3)


def test_set_creates_and_replaces() -> None:
    m = NestedMap()
    m.Set("a.b[0].c", 1)
    m.Set("a.b[1]", 2)
    m.Set("a.b[-1]", 3)
    m.Set("a.b[0].d", 4)
    assert m == {"a": {"b": [{"c": 1, "d": 4}, 3]}}
    assert type(m.a.b[0]) is NestedMap


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("b.a[3]", ValueError, r"'b\.a\[3\]'.*\b3\b.*\b2\b"),
        ("n.e[1]", ValueError, r"'n\.e\[1\]'.*\b1\b.*\b0\b"),
        ("n[-1]", ValueError, r"'n\[-1\]'.*-1.*\b0\b"),
        ("a.b", ValueError, r"'a\.b'.*'b'.*int.*\b6\b"),
        ("a.b.c", ValueError, r"'a\.b\.c'.*int.*'b'"),
        ("b.a[1][0]", ValueError, r"'b\.a\[1\]\[0\]'.*\b0\b.*tuple.*\(3"),
        ("b.keys", ValueError, "'keys'.*'keys_'"),
        ("n.keys", ValueError, "'keys'.*'keys_'"),
        ("b a", ValueError, "'b a'"),
    ],
)
def test_set_refuses_and_changes_nothing(
    key: str, error: type[Exception], message: str
) -> None:
    m = sample()
    with pytest.raises(error, match=message):
        m.Set(key, 0)
    assert m == sample()


def test_get_slice() -> None:
    m = sample()
    assert m.GetSlice(["b.z", "a"]) == {"a": 6, "b": {"z": 1}}
    assert m.GetSlice([]) == {}
    with pytest.raises(KeyError, match="nope"):
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
