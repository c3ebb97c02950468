"""NestedMap: a dict with attribute access that is used as a tree.

A key such as `a.b[0].c` names what is inside.
"""

from __future__ import annotations

import ast
import collections.abc
import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lingvo_pipe import tree

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\[(?P<item>-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
)

_NOTHING = object()


class NestedMap(dict):
    """A dict whose keys are identifiers and can be used as attributes.

    Keys, values and items come in the order of the sorted keys. A key must not be the
    name of a method, so that `nmap.key` is always the value.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    # ---- As a dict.

    @staticmethod
    def CheckKey(key: Any) -> None:
        """Raises a ValueError unless `key` is an identifier and no method's name."""
        if not (isinstance(key, str) and _NAME.fullmatch(key)):
            raise ValueError(
                "A NestedMap's key must be an identifier: letters, digits and "
                f"underscores, no digit first; got {key!r}."
            )
        if hasattr(NestedMap, key):
            raise ValueError(
                "A NestedMap's key must not be the name of one of its methods; got "
                f"{key!r}. Call it {key + '_'!r}."
            )

    def __setitem__(self, key: str, value: Any) -> None:
        self.CheckKey(key)
        super().__setitem__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(self._unknown(name))

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(self._unknown(name))
        del self[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __reversed__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))

    def keys(self) -> Any:
        return collections.abc.KeysView(self)

    def values(self) -> Any:
        return collections.abc.ValuesView(self)

    def items(self) -> Any:
        return collections.abc.ItemsView(self)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> NestedMap:
        return type(self)(self)

    def __or__(self, other: dict) -> NestedMap:
        return type(self)({**self, **other})

    def __ior__(self, other: Any) -> NestedMap:  # type: ignore[misc]
        self.update(other)
        return self

    def __repr__(self) -> str:
        items = ", ".join(f"{key}={value!r}" for key, value in self.items())
        return f"{type(self).__name__}({items})"

    def __deepcopy__(self, memo: dict[int, Any]) -> NestedMap:
        return self.DeepCopy()

    # ---- As a tree: all leaves.

    def Flatten(self) -> list[Any]:
        """Returns all leaves."""
        return [leaf for _, leaf in tree.leaves(self)]

    def FlattenItems(self) -> list[tuple[str, Any]]:
        """Returns (key, leaf) for all leaves, keys as in `a.b[0].c`."""
        return list(tree.leaves(self))

    def Keys(self) -> list[str]:
        """Returns the keys of all leaves."""
        return [key for key, _ in tree.leaves(self)]

    def Pack(self, values: Sequence[Any]) -> NestedMap:
        """Returns a map of this structure with `values` as leaves.

        Raises:
          ValueError: There are more or fewer values than leaves.
        """
        keys, values = self.Keys(), list(values)
        if len(keys) != len(values):
            raise ValueError(
                "Pack must be given one value a leaf; got "
                f"{len(values)} values for {len(keys)} leaves: {', '.join(keys)}."
            )
        remaining = iter(values)
        return self.Transform(lambda _: next(remaining))

    def Transform(self, fn: Callable[[Any], Any]) -> NestedMap:
        """Returns a map of this structure with `fn(leaf)` as leaves."""
        return tree.transform(self, lambda _, leaf: fn(leaf))

    def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> NestedMap:
        """Returns a map of this structure with `fn(key, leaf)` as leaves."""
        return tree.transform(self, fn)

    def Filter(self, fn: Callable[[Any], bool]) -> NestedMap:
        """Returns a map of the leaves for which `fn(leaf)` is true."""
        return self.FilterKeyVal(lambda _, leaf: fn(leaf))

    def FilterKeyVal(self, fn: Callable[[str, Any], bool]) -> NestedMap:
        """Returns a map of the leaves for which `fn(key, leaf)` is true.

        Nodes that lose all their leaves are left out; lists and tuples get shorter.

        Raises:
          ValueError: A namedtuple would lose some of its fields.
        """
        kept = tree.transform(
            self, lambda key, leaf: leaf if fn(key, leaf) else tree.DROPPED
        )
        return type(self)() if kept is tree.DROPPED else kept

    def IsCompatible(self, other: dict) -> bool:
        """Whether `self.Pack(other.Flatten())` is `other`: structures are equal."""
        return tree.same_structure(self, other)

    def DeepCopy(self) -> NestedMap:
        """Returns a copy: dicts, lists and tuples are copied, leaves are shared."""
        return self.Transform(lambda leaf: leaf)

    # ---- As a tree: by key.

    def GetItem(self, key: str) -> Any:
        """Returns what is at `key`, such as `a.b[0].c`.

        Raises:
          KeyError: A name on the way is missing.
          IndexError: A list or tuple on the way is too short.
          TypeError: A step leads into a leaf, or by name into a list.
          ValueError: The key is malformed.
        """
        current: Any = self
        for step in _parse(key):
            current = _get_step(current, step, key)
        return current

    def Get(self, key: str, default: Any = None) -> Any:
        """Returns what is at `key`, or `default` if nothing is."""
        try:
            return self.GetItem(key)
        except (KeyError, IndexError, TypeError):
            return default

    def Has(self, key: str) -> bool:
        """Whether anything, even None, is at `key`."""
        return self.Get(key, _NOTHING) is not _NOTHING

    def Set(self, key: str, value: Any) -> None:
        """Sets what is at `key`; maps and lists missing on the way are created.

        An index may be the length of its list, which then grows by one.

        Raises:
          IndexError: An index is beyond that; nothing is changed.
          TypeError: A step leads into a leaf or a tuple, or by name into a list.
          ValueError: The key is malformed.
        """
        steps = _parse(key)
        node: Any = self
        while len(steps) > 1 and _has_step(node, steps[0], key):
            node = _get_step(node, steps.pop(0), key)
        for step in reversed(steps[1:]):  # What is missing is made from inside out.
            value = _new_node(type(self), step, value, key)
        _set_step(node, steps[0], value, key)

    def GetSlice(self, keys: Iterable[str]) -> NestedMap:
        """Returns a map of what is at each of `keys`.

        Raises:
          KeyError: Nothing is at a key.
        """
        sliced = type(self)()
        for key in keys:
            sliced.Set(key, self.GetItem(key))
        return sliced

    def Update(self, other: dict) -> NestedMap:
        """Sets what `other` has, key by key in nested dicts too; returns self."""
        for key, value in other.items():
            mine = self.get(key)
            if isinstance(mine, NestedMap) and isinstance(value, dict):
                mine.Update(value)
            else:
                self[key] = value
        return self

    def Union(self, other: dict) -> NestedMap:
        """Returns a copy Updated with `other`; leaves are shared."""
        return self.DeepCopy().Update(other)

    # ---- Conversion.

    @staticmethod
    def FromNestedDict(nested: Any) -> Any:
        """Returns `nested` with every dict in it, at any depth, as a NestedMap."""
        return tree.convert_dicts(nested, NestedMap)

    def ToNestedDict(self) -> dict[str, Any]:
        """Returns this tree with every NestedMap in it as a plain dict."""
        return tree.convert_dicts(self, dict)

    def DebugString(self) -> str:
        """Returns a line for every leaf: its key and its value."""
        items = self.FlattenItems()
        width = max((len(key) for key, _ in items), default=0) + 4
        return "\n".join(f"{key:<{width}}{leaf}" for key, leaf in items)

    def VLog(self, level: int = 0, prefix: str = "nmap: ") -> None:
        """Logs the DebugString line by line, as INFO at level 0, else as DEBUG."""
        for line in self.DebugString().splitlines():
            severity = logging.DEBUG if level else logging.INFO
            logging.getLogger(__name__).log(severity, "%s %s", prefix, line)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        known = ", ".join(self) or "nothing"
        return f"This NestedMap has no {name!r}.{hint} It has: {known}."


def _parse(key: str) -> list[int | str]:
    """Returns the names and indices that `key` consists of."""
    steps: list[int | str] = []
    text, at = f".{key}", 0
    while at < len(text):
        match = _STEP.match(text, at)
        if not match:
            raise ValueError(
                f"A nested key must be names joined by dots, with [index] for items; "
                f"got {key!r}."
            )
        steps.append(match["name"] or ast.literal_eval(match["item"]))
        at = match.end()
    return steps


def _get_step(node: Any, step: int | str, key: str) -> Any:
    if isinstance(step, str) and step in getattr(type(node), "_fields", ()):
        return getattr(node, step)
    if isinstance(node, (list, tuple)) and isinstance(step, int):
        if -len(node) <= step < len(node):
            return node[step]
        raise IndexError(f"{key!r}: index {step} of {len(node)} items.")
    if isinstance(node, dict):
        if step in node:
            return node[step]
        raise KeyError(f"{key!r}: no {step!r} in {', '.join(map(str, node))}.")
    raise TypeError(f"{key!r}: a {type(node).__name__} has no {step!r}.")


def _has_step(node: Any, step: int | str, key: str) -> bool:
    try:
        _get_step(node, step, key)
    except (KeyError, IndexError):
        return False
    return True


def _new_node(kind: type[NestedMap], step: int | str, value: Any, key: str) -> Any:
    """Returns a map or list that holds only `value`."""
    node: Any = [] if isinstance(step, int) else kind()
    _set_step(node, step, value, key)
    return node


def _set_step(node: Any, step: int | str, value: Any, key: str) -> None:
    if isinstance(node, dict):
        node[step] = value
    elif isinstance(node, list) and isinstance(step, int):
        if step == len(node):
            node.append(value)
        elif -len(node) <= step < len(node):
            node[step] = value
        else:
            raise IndexError(
                f"{key!r} must not leave a gap; index {step} of {len(node)} items."
            )
    else:
        raise TypeError(
            f"{key!r} must lead through dicts and lists; {step!r} would be set in "
            f"the {type(node).__name__} {node!r}."
        )
