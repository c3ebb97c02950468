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


def braces(params: Fields, indent: str = "") -> str:
    """Returns Params in Lingvo's form: a line for each param, sorted by name."""
    inner = f"{indent}  "
    lines = [
        f"{inner}{name}: {_shown(x, inner)}\n" for name, x in sorted_params(params)
    ]
    return f"{{\n{''.join(lines)}{indent}}}"


def _shown(value: Any, indent: str) -> str:
    if isinstance(value, Fields):
        return braces(value, indent)
    return f'"{value}"' if isinstance(value, str) else str(_on_a_line(value))


def _on_a_line(value: Any) -> Any:
    """Returns `value` with dicts for Params, and with its dicts sorted by key."""
    if isinstance(value, (Fields, dict)):
        pairs = value.IterParams() if isinstance(value, Fields) else value.items()
        return {
            k: _on_a_line(x) for k, x in sorted(pairs, key=lambda pair: str(pair[0]))
        }
    if isinstance(value, (list, tuple)) and record_fields(value) is None:
        return type(value)(map(_on_a_line, value))
    return value


def sorted_params(params: Fields) -> list[tuple[str, Any]]:
    """Returns (name, value) for all params, sorted by name."""
    return sorted(params.IterParams(), key=lambda pair: pair[0])
