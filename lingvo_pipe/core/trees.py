"""Trees: nested dicts, lists, tuples and namedtuples. Anything else is a leaf.

Dicts are walked by sorted keys, as in tf.nest. Paths are written as in `a.b[0].c`.
"""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

# A leaf is removed if the function that `transform` calls for it returns this.
DROPPED = object()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def leaves(node: Any, path: str = "", tuples: bool = True) -> Iterator[tuple[str, Any]]:
    """Yields (path, leaf) for all leaves. With `tuples` False, tuples are leaves."""
    children = _children(node, tuples)
    if children is None:
        yield path.removeprefix("."), node
        return
    for step, child in children:
        yield from leaves(child, path + step, tuples)


def transform(node: Any, fn: Callable[[str, Any], Any], path: str = "") -> Any:
    """Returns the tree with each leaf replaced by `fn(path, leaf)`.

    Tuples are leaves. Leaves that become DROPPED are removed, and so are nodes that
    have no other leaves.
    """
    children = _children(node, tuples=False)
    if children is None:
        return fn(path.removeprefix("."), node)
    results = [transform(child, fn, path + step) for step, child in children]
    left = [child for child in results if child is not DROPPED]
    if results and not left:
        return DROPPED
    if not isinstance(node, dict):
        return type(node)(left)
    rebuilt = copy.copy(node)
    rebuilt.clear()
    pairs = zip(sorted(node), results, strict=True)
    rebuilt.update((key, child) for key, child in pairs if child is not DROPPED)
    return rebuilt


def same_structure(a: Any, b: Any) -> bool:
    """Returns whether trees differ only in leaves. Classes of dicts do not matter."""
    children, other_children = _children(a), _children(b)
    if children is None or other_children is None:
        return children is other_children
    if type(a) is not type(b) and not (isinstance(a, dict) and isinstance(b, dict)):
        return False
    return len(children) == len(other_children) and all(
        step == other_step and same_structure(child, other_child)
        for (step, child), (other_step, other_child) in zip(
            children, other_children, strict=True
        )
    )


def convert_dicts(node: Any, kind: type) -> Any:
    """Returns a copy of a tree with all dicts of the class `kind`. Shares leaves."""
    children = _children(node)
    if children is None:
        return node
    converted = [convert_dicts(child, kind) for _, child in children]
    if isinstance(node, dict):
        return kind(zip(sorted(node), converted, strict=True))
    return type(node)(*converted) if hasattr(node, "_fields") else type(node)(converted)


def _children(node: Any, tuples: bool = True) -> list[tuple[str, Any]] | None:
    """Returns a pair such as (".key", child) for each child, or None for a leaf."""
    if isinstance(node, tuple) and not tuples:
        return None
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
