"""NestedMap: a dict with attribute access, also a tree with keys such as `a.b[0].c`."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any

from lingvo_pipe.core import errors, trees
from lingvo_pipe.core.errors import UserError, Words
from lingvo_pipe.core.paths import Name, parse_path

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = "key of a NestedMap"
_ABSENT = object()


class NestedMap(dict):
    """A dict whose keys are also attributes. Keys are identifiers, in sorted order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    # ---- As a dict.

    @staticmethod
    def CheckKey(key: Any) -> None:
        """Raises ValueError unless `key` is an identifier and not a method's name."""
        if not (isinstance(key, str) and _NAME.fullmatch(key)):
            expected = "letters, digits and underscores, no digit first"
            raise errors.UserNameError(path=_KEY, expected=expected, got=key)
        if hasattr(NestedMap, key):
            hint = f"Call it {key + '_'!r}."
            expected = "no reserved name, such as a method's"
            raise errors.UserNameError(path=_KEY, expected=expected, got=key, hint=hint)

    def __setitem__(self, key: str, value: Any) -> None:
        self.CheckKey(key)
        super().__setitem__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise self._unknown(errors.UserAttributeError, name)

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise self._unknown(errors.UserAttributeError, name)
        del self[name]

    def __missing__(self, key: str) -> Any:
        raise self._unknown(errors.UserKeyError, key)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self, *self.Keys()})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __reversed__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))

    # Unlike dict's own, these use the methods above.
    keys: Any = Mapping.keys
    values: Any = Mapping.values
    items: Any = Mapping.items
    setdefault: Any = MutableMapping.setdefault

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Sets items as `dict.update` does. Sets none if `CheckKey` rejects a key."""
        items = dict(*args, **kwargs)
        for key in items:
            self.CheckKey(key)
        super().update(items)

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

    # ---- As a tree: all leaves. Tuples are leaves, as in Lingvo, unlike for tf.nest.

    def Flatten(self) -> list[Any]:
        """Returns all leaves."""
        return [leaf for _, leaf in self.FlattenItems()]

    def FlattenItems(self) -> list[tuple[str, Any]]:
        """Returns (key, leaf) for all leaves."""
        return list(trees.leaves(self, tuples=False))

    def Keys(self) -> list[str]:
        """Returns the keys of all leaves."""
        return [key for key, _ in self.FlattenItems()]

    def Pack(self, values: Sequence[Any]) -> NestedMap:
        """Returns a map with this structure, and with `values` as leaves.

        Raises:
            ValueError: if the number of values is not the number of leaves.
        """
        keys, values = self.Keys(), list(values)
        if len(keys) != len(values):
            raise errors.UserValueError(
                path="NestedMap.Pack",
                expected=f"a value for each of {len(keys)} leaves ({', '.join(keys)})",
                got=Words(f"{len(values)} values"),
            )
        remaining = iter(values)
        return self.Transform(lambda _: next(remaining))

    def Transform(self, fn: Callable[[Any], Any]) -> NestedMap:
        """Returns a map of this structure with `fn(leaf)` as leaves."""
        return trees.transform(self, lambda _, leaf: fn(leaf))

    def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> NestedMap:
        """Returns a map of this structure with `fn(key, leaf)` as leaves."""
        return trees.transform(self, fn)

    def Filter(self, fn: Callable[[Any], bool]) -> NestedMap:
        """Returns a map of the leaves for which `fn(leaf)` is true."""
        return self.FilterKeyVal(lambda _, leaf: fn(leaf))

    def FilterKeyVal(self, fn: Callable[[str, Any], bool]) -> NestedMap:
        """Returns a map of the leaves for which `fn(key, leaf)` is true.

        Removes maps and lists that lose all their leaves.
        """
        filtered = trees.transform(
            self, lambda key, leaf: leaf if fn(key, leaf) else trees.DROPPED
        )
        return type(self)() if filtered is trees.DROPPED else filtered

    def IsCompatible(self, other: dict) -> bool:
        """Returns whether the leaves of `other` and of this map have the same keys."""
        return self.Keys() == [key for key, _ in trees.leaves(other, tuples=False)]

    def DeepCopy(self) -> NestedMap:
        """Returns a copy of all nested dicts and lists. Leaves are not copied."""
        return self.Transform(lambda leaf: leaf)

    # ---- As a tree: by key.

    def GetItem(self, key: str) -> Any:
        """Returns the value at `key`, such as `a.b[0].c`.

        Raises:
            KeyError: if a dict on the way lacks a name in the key.
            IndexError: if a list or tuple on the way is too short.
            TypeError: if the key goes on below a leaf, or has a name for a list.
            ValueError: if the key is malformed.
        """
        current: Any = self
        for step in parse_key(key):
            current = get_step(current, step, key)
        return current

    def Get(self, key: str, default: Any = None) -> Any:
        """Returns the value at `key`, or `default` if there is none."""
        try:
            return self.GetItem(key)
        except (KeyError, IndexError, TypeError):
            return default

    def Has(self, key: str) -> bool:
        """Returns whether there is a value at `key`. The value may be None."""
        return self.Get(key, _ABSENT) is not _ABSENT

    def Set(self, key: str, value: Any) -> None:
        """Sets the value at `key`.

        Creates missing maps and lists on the way. An index equal to the length of its
        list appends to the list. If an error is raised, nothing has changed.

        Raises:
            ValueError: if the key is malformed, goes on below a leaf or a tuple, or has
                a name or a too large index for a list.
        """
        steps = parse_key(key)
        node: Any = self
        while len(steps) > 1:
            try:
                node = get_step(node, steps[0], key)
            except (KeyError, IndexError):
                break
            except errors.UserTypeError as error:
                raise _leads_nowhere(errors.UserValueError, node, key) from error
            del steps[0]
        for step in reversed(steps[1:]):  # Creates missing nodes from inside out.
            inner, value = value, [] if isinstance(step, int) else type(self)()
            _set_step(value, step, inner, key)
        _set_step(node, steps[0], value, key)

    def GetSlice(self, keys: Iterable[str]) -> NestedMap:
        """Returns a map of the values at `keys`. Raises the errors of `GetItem`."""
        sliced = type(self)()
        for key in keys:
            sliced.Set(key, self.GetItem(key))
        return sliced

    def Update(self, other: dict) -> NestedMap:
        """Sets each leaf of `other` at its key, as `Set` does. Returns this map."""
        for key, leaf in NestedMap.FromNestedDict(other).FlattenItems():
            self.Set(key, leaf)
        return self

    def Union(self, other: dict) -> NestedMap:
        """Returns a copy of this map, updated with the leaves of `other`."""
        return self.DeepCopy().Update(other)

    # ---- Conversion.

    @staticmethod
    def FromNestedDict(nested: Any) -> Any:
        """Returns a copy of `nested` in which all dicts at any depth are NestedMaps."""
        return trees.convert_dicts(nested, NestedMap)

    @staticmethod
    def FromNestedDataclass(nested: Any) -> NestedMap:
        """Converts a dataclass, and the dataclasses and dicts in it, to NestedMaps."""
        return NestedMap.FromNestedDict(dataclasses.asdict(nested))

    def ToNestedDict(self) -> dict[str, Any]:
        """Returns a copy of this tree in which all NestedMaps are plain dicts."""
        return trees.convert_dicts(self, dict)

    def DebugString(self) -> str:
        """Returns a line for every leaf: its key and its value."""
        items = self.FlattenItems()
        width = max((len(key) for key, _ in items), default=0) + 4
        plain = ((key, trees.convert_dicts(leaf, dict)) for key, leaf in items)
        return "\n".join(f"{key:<{width}}{leaf}" for key, leaf in plain)

    def VLog(self, level: int = 0, prefix: str = "nmap: ") -> None:
        """Logs the DebugString line by line, as INFO at level 0, else as DEBUG."""
        for line in self.DebugString().splitlines():
            severity = logging.DEBUG if level else logging.INFO
            logging.getLogger(__name__).log(severity, "%s %s", prefix, line)

    def _unknown(self, kind: type[UserError], name: str) -> UserError:
        expected = f"one of the available attributes ({', '.join(self) or 'none'})"
        return kind(path=_KEY, expected=expected, got=name, names=self)


def parse_key(key: str) -> list[int | str]:
    """Returns the names and indices that a key such as `a.b[0].c` consists of."""
    return [s.name if isinstance(s, Name) else s.key for s in parse_path(key)]


def get_step(node: Any, step: int | str, key: str) -> Any:
    """Returns a node's value at a step of `key`. Raises the errors of `GetItem`."""
    if isinstance(step, str) and step in getattr(type(node), "_fields", ()):
        return getattr(node, step)
    if isinstance(node, (list, tuple)) and isinstance(step, int):
        if -len(node) <= step < len(node):
            return node[step]
        expected = f"an index of {len(node)} items"
        raise errors.UserIndexError(path=key, expected=expected, got=step)
    if isinstance(node, dict):
        if step in node:
            return node[step]
        expected = f"one of {', '.join(map(str, node)) or 'no keys'}"
        raise errors.UserKeyError(path=key, expected=expected, got=step, names=node)
    raise _leads_nowhere(errors.UserTypeError, node, key)


def _set_step(node: Any, step: int | str, value: Any, key: str) -> None:
    if isinstance(node, dict):
        node[step] = value
    elif isinstance(node, list) and isinstance(step, int):
        if step == len(node):
            node.append(value)
        elif -len(node) <= step < len(node):
            node[step] = value
        else:
            expected = f"an index of at most {len(node)}, which appends"
            raise errors.UserValueError(path=key, expected=expected, got=step)
    else:
        raise _leads_nowhere(errors.UserValueError, node, key)


def _leads_nowhere(kind: type[UserError], node: Any, key: str) -> UserError:
    return kind(path=key, expected="a key through dicts and lists", got=node)
