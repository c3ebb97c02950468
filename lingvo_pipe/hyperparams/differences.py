"""Differences between two Params, or between two texts of Params.

A difference is a line `> path : value` for the first and `< path : value` for the
second; a path that only one of them has makes one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.entries import entries_by_path
from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.frozen_values import same_value
from lingvo_pipe.hyperparams.value_text import shown_value
from lingvo_pipe.hyperparams.walk import children, holds_params

_ABSENT = object()


def diff_params(a: Fields, b: Fields) -> str:
    """Returns the lines, each ended by a newline; "" if nothing differs."""

    def line(path: str, value: Any) -> str:
        return f"{path} : {shown_value(value)}"

    return _diff(_flatten(a), _flatten(b), same_value, line)


def diff_texts(a: str, b: str) -> str:
    """Returns the lines for two texts of Params.ToText, with one entry per line.

    Raises:
        ValueError: if a line of a text is not an entry.
    """
    ours, theirs = entries_by_path(a), entries_by_path(b)
    return _diff(ours, theirs, lambda x, y: x == y, lambda _, entry: str(entry))


def _diff(
    ours: dict[str, Any],
    theirs: dict[str, Any],
    is_same: Callable[[Any, Any], bool],
    line: Callable[[str, Any], str],
) -> str:
    lines = []
    for path in dict.fromkeys([*ours, *theirs]):
        values = [ours.get(path, _ABSENT), theirs.get(path, _ABSENT)]
        if not is_same(*values):
            lines += [
                f"{mark} {line(path, value)}\n"
                for mark, value in zip("><", values, strict=True)
                if value is not _ABSENT
            ]
    return "".join(lines)


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Returns values by path, inside Params and inside containers of Params."""
    if not holds_params(value):
        return {path.removeprefix("."): value}
    flat: dict[str, Any] = {}
    for step, child in children(value) or ():
        flat |= _flatten(child, path + step)
    return flat
