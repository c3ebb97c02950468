"""Params for people to read: nested, with braces."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.visit import holds_params


def braces(value: Any, indent: str = "") -> str:
    """Returns `value`; what holds Params over several lines, their names sorted."""
    if isinstance(value, Fields):
        pairs = sorted(value.IterParams(), key=lambda pair: pair[0])
        return _block("{", [(f"{name}: ", item) for name, item in pairs], "}", indent)
    if not holds_params(value):
        return repr(value)
    if isinstance(value, dict):
        pairs = [(f"{key!r}: ", item) for key, item in value.items()]
        return _block("{", pairs, "}", indent)
    if isinstance(value, list):
        return _block("[", [("", item) for item in value], "]", indent)
    if isinstance(value, tuple):
        return _block("(", [("", item) for item in value], ")", indent)
    return repr(value)


def _block(
    opening: str, labelled: list[tuple[str, Any]], closing: str, indent: str
) -> str:
    inner = f"{indent}  "
    lines = [f"{inner}{label}{braces(item, inner)}\n" for label, item in labelled]
    return f"{opening}\n{''.join(lines)}{indent}{closing}"
