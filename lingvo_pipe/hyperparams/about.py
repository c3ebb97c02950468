"""What a param is, and which ones a misspelt path may mean: for errors about texts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.navigate import resolve
from lingvo_pipe.hyperparams.path import parse_path
from lingvo_pipe.hyperparams.suggest import near_names
from lingvo_pipe.hyperparams.value_write import kind_of, write_value

_MOST_NEAR = 3
_LONGEST_VALUE = 50


def about_path(params: Fields, path: str) -> str:
    """Returns a sentence, after a blank, about the param that someone means by a path.

    Returns:
      Its type, its default, and its value if that is another; of several params, if
      the path leads nowhere and is like theirs; "" if it is like none.
    """
    with contextlib.suppress(AttributeError, ValueError):
        return f" {path!r} has {_about(params, path)}."
    near = [f"{each!r} ({_about(params, each)})" for each in _near_paths(params, path)]
    return f" Near it: {', '.join(near)}." if near else ""


def _about(params: Fields, path: str) -> str:
    steps = parse_path(path)
    value, owner = resolve(params, steps), resolve(params, steps[:-1])
    # Whatever stands for None is read as what it looks like.
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
    try:
        text = write_value(value)
    except ValueError:
        text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 3]}..."


def _near_paths(params: Fields, path: str) -> list[str]:
    """The paths that end in the same name, most of their ends alike; then any like it.

    Of lists' items only the first are looked at, and those that the path names.
    """
    every = list(_paths(params, "", path))
    name = re.search(r"\w*$", path)[0]  # type: ignore[index]
    same = [each for each in every if re.search(r"\w*$", each)[0] == name]  # type: ignore[index]
    same.sort(key=lambda each: -len(os.path.commonprefix([each[::-1], path[::-1]])))
    return list(dict.fromkeys([*same, *near_names(path, every)]))[:_MOST_NEAR]


def _paths(value: Any, path: str, typed: str) -> Iterator[str]:
    """Yields the paths of all params in `value`, which stands at `path`."""
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
