"""Walks through everything that Params hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields


def children(value: Any) -> list[tuple[str, Any]] | None:
    """Returns what `value` holds, or None if it is nothing that holds others.

    Each comes with the step that leads to it, as it is written in a path.
    """
    if isinstance(value, Fields):
        return [(f".{name}", child) for name, child in value.IterParams()]
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    return None


def holds_params(value: Any) -> bool:
    """Whether `value` is Params or holds some at any depth."""
    if isinstance(value, Fields):
        return True
    return any(holds_params(child) for _, child in children(value) or ())


def walk(
    value: Any,
    visit: Callable[[str, Any], None],
    enter: Callable[[str, Any], bool] | None = None,
    leave: Callable[[str, Any], None] | None = None,
    path: str = "",
) -> None:
    """Calls the functions for everything in `value`; see Params.Visit."""
    shown = path.removeprefix(".")
    held = children(value)
    if held is None or (enter is not None and not enter(shown, value)):
        visit(shown, value)
        return
    for step, child in held:
        walk(child, visit, enter, leave, path + step)
    if leave is not None:
        leave(shown, value)
