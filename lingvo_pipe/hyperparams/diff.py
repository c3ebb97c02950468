"""What differs between two Params, as text."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.value_write import write_value
from lingvo_pipe.hyperparams.values import same_value
from lingvo_pipe.hyperparams.visit import children, holds_params

_ABSENT = object()


def text_diff(a: Params, b: Params) -> str:
    """Returns `> path : value` for what `a` has otherwise than `b`, `<` for `b`'s.

    Returns:
      The lines, each ended by a newline; "" if nothing differs.
    """
    ours, theirs = _flatten(a), _flatten(b)
    lines = []
    for path in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(path, _ABSENT), theirs.get(path, _ABSENT)
        if same_value(mine, other):
            continue
        if mine is not _ABSENT:
            lines.append(f"> {path} : {_shown(mine)}\n")
        if other is not _ABSENT:
            lines.append(f"< {path} : {_shown(other)}\n")
    return "".join(lines)


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Returns values by path, inside Params and whatever holds Params."""
    if not holds_params(value):
        return {path.removeprefix("."): value}
    flat: dict[str, Any] = {}
    for step, child in children(value) or ():
        flat |= _flatten(child, path + step)
    return flat


def _shown(value: Any) -> str:
    try:
        return write_value(value)
    except ValueError:
        return repr(value)  # It has no text form.
