"""Functions that walk through all values in Params, or print them nested."""

import dataclasses
from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields


def record_fields(value: Any) -> dict[str, Any] | None:
    """Returns the fields of a dataclass or named tuple by name, else None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: getattr(value, name) for name in names}
    return None


def children(value: Any) -> list[tuple[str, Any]] | None:
    """Returns a pair such as (".name", child) for each child, or None for a leaf."""
    if isinstance(value, Fields):
        return [(f".{name}", child) for name, child in value.IterParams()]
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    fields = record_fields(value)
    if fields is not None:
        return [(f"[{name}]", child) for name, child in fields.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    return None


def holds_params(value: Any) -> bool:
    """Returns whether `value` is Params or holds Params at any depth."""
    if isinstance(value, Fields):
        return True
    return any(holds_params(child) for _, child in children(value) or ())


def walk(
    value: Any,
    visit: Callable[[str, Any], None],
    enter: Callable[[str, Any], bool] | None = None,
    on_exit: Callable[[str, Any], None] | None = None,
    path: str = "",
) -> None:
    """Walks through `value`, depth first, and calls the functions. See Params.Visit."""
    shown = path.removeprefix(".")
    held = children(value)
    if held is None or (enter is not None and not enter(shown, value)):
        visit(shown, value)
        return
    for step, child in held:
        walk(child, visit, enter, on_exit, path + step)
    if on_exit is not None:
        on_exit(shown, value)


_BRACKETS = {Fields: "{}", dict: "{}", list: "[]", tuple: "()"}


def braces(value: Any, indent: str = "") -> str:
    """Returns `value` as text. Params take a line for each param, sorted by name."""
    kind = next((k for k in _BRACKETS if isinstance(value, k)), None)
    if kind is None or not holds_params(value):
        return repr(value)
    if isinstance(value, Fields):
        pairs = [(f"{name}: ", item) for name, item in sorted_params(value)]
    elif isinstance(value, dict):
        pairs = [(f"{key!r}: ", item) for key, item in value.items()]
    else:
        pairs = [("", item) for item in value]
    brackets, inner = _BRACKETS[kind], f"{indent}  "
    lines = [f"{inner}{label}{braces(item, inner)}\n" for label, item in pairs]
    return f"{brackets[0]}\n{''.join(lines)}{indent}{brackets[1]}"


def sorted_params(params: Fields) -> list[tuple[str, Any]]:
    """Returns (name, value) for all params, sorted by name."""
    return sorted(params.IterParams(), key=lambda pair: pair[0])
