"""Trees: dicts, lists, tuples and namedtuples with anything else as leaves.

Dicts are walked in the order of their sorted keys, as by tf.nest. The path of a node is
written as in `a.b[0].c`. Pure.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from lingvo_pipe.core.errors import UserValueError

# Returned by a function passed to `transform`, removes the leaf.
DROPPED = object()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, leaf) for all leaves."""
    children = _children(node)
    if children is None:
        yield path.removeprefix("."), node
        return
    for step, child in children:
        yield from leaves(child, path + step)


def transform(node: Any, fn: Callable[[str, Any], Any], path: str = "") -> Any:
    """Returns a tree of the same structure with `fn(path, leaf)` as leaves.

    Leaves that become DROPPED are removed, and with them nodes without other leaves.
    Raises ValueError if a namedtuple would lose some of its fields.
    """
    children = _children(node)
    if children is None:
        return fn(path.removeprefix("."), node)
    return _rebuild(node, [transform(c, fn, path + step) for step, c in children])


def same_structure(a: Any, b: Any) -> bool:
    """Returns whether two trees have the same nodes; all dicts count as the same."""
    mine, others = _children(a), _children(b)
    if mine is None or others is None:
        return mine is others
    if type(a) is not type(b) and not (isinstance(a, dict) and isinstance(b, dict)):
        return False
    return len(mine) == len(others) and all(
        step == other_step and same_structure(child, other)
        for (step, child), (other_step, other) in zip(mine, others, strict=True)
    )


def convert_dicts(node: Any, kind: type) -> Any:
    """Returns a copy of a tree, leaves shared, with `kind` for every dict."""
    children = _children(node)
    if children is None:
        return node
    converted = [convert_dicts(child, kind) for _, child in children]
    if isinstance(node, dict):
        return kind(zip(sorted(node), converted, strict=True))
    return _rebuild(node, converted)


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """Returns (step, child) for all children, or None for a leaf."""
    if isinstance(node, dict):
        return [(_step_text(key), node[key]) for key in sorted(node)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return [(f".{name}", getattr(node, name)) for name in node._fields]
    if isinstance(node, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(node)]
    return None


def _step_text(key: Any) -> str:
    is_name = isinstance(key, str) and _NAME.fullmatch(key)
    return f".{key}" if is_name else f"[{key!r}]"


def _rebuild(node: Any, children: list[Any]) -> Any:
    """Returns a node like `node` with other children, without those DROPPED."""
    remaining = [child for child in children if child is not DROPPED]
    if children and not remaining:
        return DROPPED
    if isinstance(node, dict):
        rebuilt = copy.copy(node)
        rebuilt.clear()
        pairs = zip(sorted(node), children, strict=True)
        rebuilt.update((key, child) for key, child in pairs if child is not DROPPED)
        return rebuilt
    if hasattr(node, "_fields"):
        if len(remaining) < len(children):
            raise UserValueError(
                "A filter must keep all fields of a namedtuple or none; it keeps "
                f"{len(remaining)} of {', '.join(node._fields)}."
            )
        return type(node)(*remaining)
    return type(node)(remaining)
