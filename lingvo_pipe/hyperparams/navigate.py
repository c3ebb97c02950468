"""Follows a path through nested Params, lists and dicts: read, set, delete.

Setting and deleting return how to undo the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.path import Item, Name, format_path
from lingvo_pipe.hyperparams.suggest import did_you_mean

Steps = tuple[Any, ...]  # Of Step; the owner of the last one says which it is.
Undo = Callable[[], None]


def resolve(root: Fields, steps: Steps) -> Any:
    """Returns the value that `steps` lead to from `root`."""
    value: Any = root
    for depth in range(1, len(steps) + 1):
        value = _child(value, steps[:depth])
    return value


def assign(root: Fields, steps: Steps, new: Any) -> Undo:
    """Sets the value that `steps` lead to."""
    owner = resolve(root, steps[:-1])
    old = _child(owner, steps)
    if isinstance(owner, Fields):
        owner._CheckMutable(f"set {format_path(steps)!r}")
        field = owner._Lookup(steps)
        field.value = new
        return lambda: setattr(field, "value", old)
    if isinstance(owner, tuple):
        raise TypeError(
            f"{format_path(steps)!r} must not be set: a tuple cannot be changed. "
            f"Set the whole {format_path(steps[:-1])!r}."
        )
    key = steps[-1].key
    owner[key] = new
    return lambda: owner.__setitem__(key, old)


def delete(root: Fields, steps: Steps) -> Undo:
    """Removes the param that `steps` lead to."""
    owner = resolve(root, steps[:-1])
    _child(owner, steps)
    if not isinstance(owner, Fields):
        raise ValueError(
            f"Delete must be given a param; {format_path(steps)!r} is an item of a "
            f"{type(owner).__name__}. Set the whole {format_path(steps[:-1])!r}."
        )
    owner._CheckMutable(f"delete {format_path(steps)!r}")
    before = dict(owner._fields)
    del owner._fields[steps[-1].name]

    def undo() -> None:
        owner._fields.clear()
        owner._fields.update(before)

    return undo


def _child(owner: Any, steps: Steps) -> Any:
    """Returns the child of `owner` that the last of `steps` names."""
    step = steps[-1]
    if isinstance(step, Name) and isinstance(owner, Fields):
        return owner._Lookup(steps).value
    if isinstance(step, Item) and isinstance(owner, (list, tuple, dict)):
        return _item(owner, step.key, steps)
    where, path = format_path(steps[:-1]), format_path(steps)
    needed = "Params" if isinstance(step, Name) else "a list, tuple or dict"
    raise AttributeError(
        f"{where!r} must be {needed} to reach {path!r}; got {_shown(owner)}."
    )


def _item(owner: Any, key: int | str, steps: Steps) -> Any:
    if isinstance(owner, dict):
        if key in owner:
            return owner[key]
        near = did_you_mean(str(key), (k for k in owner if isinstance(k, str)))
        known = ", ".join(map(repr, owner)) or "nothing"
        rule = f"an item of {format_path(steps[:-1])!r}, a dict.{near} It has: {known}"
    else:
        if isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        rule = (
            f"an item of {format_path(steps[:-1])!r}, a {type(owner).__name__} "
            f"of {len(owner)}"
        )
    raise AttributeError(f"{format_path(steps)!r} must be {rule}.")


def _shown(value: Any) -> str:
    if isinstance(value, Fields):
        return "Params, which have names and no items"
    return f"{type(value).__name__} {value!r}" if value is not None else "None"
