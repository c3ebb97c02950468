"""Hints for errors: what param is at a path, or which paths are similar."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from lingvo_pipe.core.near_names import near_names
from lingvo_pipe.core.paths import parse_path
from lingvo_pipe.hyperparams.fields import Fields, resolve
from lingvo_pipe.hyperparams.value_text import kind_of, shown_value

_MAX_NEAR = 3
_MAX_SHOWN = 50  # Characters of a value.


def about_path(params: Fields, path: str) -> str:
    """Returns a sentence about the param at a path, or about similar paths, or ""."""
    with contextlib.suppress(AttributeError, ValueError):
        return f"{path} has {_about(params, path)}."
    near = [f"{x} ({_about(params, x)})" for x in _near_paths(params, path)]
    return f"Near it: {', '.join(near)}." if near else ""


def _about(params: Fields, path: str) -> str:
    steps = parse_path(path)
    value, owner = resolve(params, steps), resolve(params, steps[:-1])
    # A param that is None is read as the type that its text looks like.
    kind = "any" if value is None else kind_of(value) or type(value).__name__
    if not isinstance(owner, Fields):
        return f"type {kind}, value {_short(value)}"
    default = _short(owner._Lookup(steps).default)
    differs = "" if _short(value) == default else f", value {_short(value)}"
    return f"type {kind}, default {default}{differs}"


def _short(value: Any) -> str:
    if isinstance(value, Fields):
        cls = getattr(value, "cls", None) if "cls" in value else None
        return "Params" if cls is None else f"Params of {cls.__name__}"
    text = shown_value(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _near_paths(params: Fields, path: str) -> list[str]:
    """Returns up to three similar paths, first those that end in the same name."""
    paths = list(_paths(params, "", path))
    last_name = re.split(r"\W", path)[-1]
    same = [x for x in paths if re.split(r"\W", x)[-1] == last_name]
    same.sort(key=lambda x: -len(os.path.commonprefix([x[::-1], path[::-1]])))
    return list(dict.fromkeys([*same, *near_names(path, paths)]))[:_MAX_NEAR]


def _paths(value: Any, path: str, typed: str) -> Iterator[str]:
    if isinstance(value, Fields):
        for name, child in value.IterParams():
            inner = f"{path}.{name}".removeprefix(".")
            yield inner
            yield from _paths(child, inner, typed)
    elif isinstance(value, dict):
        for key, child in value.items():
            if isinstance(key, (int, str)):
                yield from _paths(child, f"{path}[{key!r}]", typed)
    elif isinstance(value, (list, tuple)):
        for i, child in enumerate(value):
            if i == 0 or f"[{i}]" in typed:
                yield from _paths(child, f"{path}[{i}]", typed)
