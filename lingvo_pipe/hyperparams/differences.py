"""Differences between two Params, or between two texts of Params.

A difference is a line `> path : value` for the first and `< path : value` for the
second; a path that only one of them has makes one line.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.frozen_values import same_value
from lingvo_pipe.hyperparams.text_entries import entries_by_path
from lingvo_pipe.hyperparams.traversal import holds_params, walk
from lingvo_pipe.hyperparams.value_text import shown_value

_ABSENT = object()


def diff_params(a: Fields, b: Fields) -> str:
    """Returns the lines, each ended by a newline; "" if nothing differs."""
    ours, theirs = _flatten(a), _flatten(b)
    return _diff(ours, theirs, same_value, lambda k, v: f"{k} : {shown_value(v)}")


def diff_texts(a: str, b: str) -> str:
    """Returns the lines for two texts of Params.ToText, with one entry per line."""
    ours, theirs = entries_by_path(a), entries_by_path(b)
    return _diff(ours, theirs, operator.eq, lambda _, entry: str(entry))


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


def _flatten(params: Fields) -> dict[str, Any]:
    """Returns values by path, inside Params and inside containers of Params."""
    flat: dict[str, Any] = {}
    walk(params, flat.__setitem__, enter=lambda _, value: holds_params(value))
    return flat
