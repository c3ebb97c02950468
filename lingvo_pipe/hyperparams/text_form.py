"""Writes Params as entries of a text, and sets Params from such a text.

A text can be read into new Params of the same class. Nested Params that new Params may
lack are written as a template first. A value that would be read as another type is
written with its type.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lingvo_pipe.core.errors import UserError, UserValueError, Words
from lingvo_pipe.core.paths import parse_path
from lingvo_pipe.hyperparams import templates, value_text
from lingvo_pipe.hyperparams.fields import (
    Fields,
    Steps,
    Undo,
    assign,
    change_all,
    resolve,
)
from lingvo_pipe.hyperparams.old_names import current_path
from lingvo_pipe.hyperparams.path_hints import about_path
from lingvo_pipe.hyperparams.text_entries import (
    Entry,
    check_separator,
    parse_entry,
    split_entries,
)
from lingvo_pipe.hyperparams.traversal import record_fields, sorted_params

# The start of a malformed entry that may be meant as a path.
_PATH = re.compile(r"[^\s:=(]*")


# ---- To text.


def write_entries(params: Any) -> Iterator[tuple[Entry, str]]:
    """Yields (entry, name of the value's type) for all params, sorted by name."""
    knows_class = isinstance(params, Fields._instantiable)
    fresh = templates.fresh_params(params.cls) if knows_class else None
    return _params_entries("", params, fresh)


def _params_entries(
    prefix: str, params: Fields, fresh: Fields | None
) -> Iterator[tuple[Entry, str]]:
    """Yields the entries of `params`. `fresh` are the Params to read into, if known."""
    for name, value in sorted_params(params):
        if prefix and name == "cls" and isinstance(params, Fields._instantiable):
            continue  # The template states it.
        if fresh is not None and name in fresh:
            expected = fresh._fields[name].value
        else:
            expected = params._fields[name].default
        yield from _value_entries(f"{prefix}{name}", value, expected)


def _value_entries(path: str, value: Any, expected: Any) -> Iterator[tuple[Entry, str]]:
    are_plain = type(value) is type(expected) is Fields._plain
    if are_plain and set(value.GetKeys()) == set(expected.GetKeys()):
        yield from _params_entries(f"{path}.", value, expected)
        return
    try:
        text = value_text.write_value(value, expected)
        nested = list(_nested_params(path, value))
    except ValueError as error:
        raise _at_path(error, path) from error
    yield Entry(path, text, _kind_to_name(value, expected)), value_text.kind_of(value)
    for inner_path, inner in nested:
        fresh = templates.build_template(templates.template_text(inner))
        yield from _params_entries(f"{inner_path}.", inner, fresh)


def _kind_to_name(value: Any, expected: Any) -> str:
    """Returns the type that an entry must name, or "" if a reader infers it."""
    kind, expected_kind = value_text.kind_of(value), value_text.kind_of(expected)
    if value is None or expected is None or expected_kind == kind:
        return ""
    if not expected_kind and record_fields(expected) is None:
        return ""
    if (kind, expected_kind) == ("int", "float") and abs(value) <= 2**53:
        return ""
    return kind


def _nested_params(path: str, value: Any) -> Iterator[tuple[str, Fields]]:
    if isinstance(value, Fields):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _nested_params(f"{path}[{i}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            for inner_path, inner in _nested_params(f"{path}[{key!r}]", item):
                if type(key) not in (int, str):
                    expected = "an int or a string as key of Params in a dict"
                    raise UserValueError(expected=expected, got=key)
                yield inner_path, inner


# ---- From text.


def read_entries(
    params: Fields, text: str, type_overrides: Mapping[str, str], separator: str
) -> None:
    """Sets params from the entries of a text, all or none. See Params.FromText."""
    check_separator(separator)
    kinds = {current_path(path): kind for path, kind in type_overrides.items()}
    steps_seen: set[Steps] = set()

    def change(entry_text: str) -> Undo:
        entry, steps, old = _find(params, entry_text)
        if steps in steps_seen:
            path = entry.path
            raise UserValueError(path=path, expected="one entry", got=Words("another"))
        steps_seen.add(steps)
        kind = entry.kind or kinds.get(entry.path, "")
        return assign(params, steps, _read(params, entry, old, kind))

    change_all(change, split_entries(text, separator))


def _find(params: Fields, text: str) -> tuple[Entry, Steps, Any]:
    try:
        entry = parse_entry(text)
        steps = parse_path(entry.path)
        old = resolve(params, steps)
    except UserError as error:
        meant = _PATH.match(text)[0]  # type: ignore[index]
        raise _at_path(error, "", about_path(params, meant)) from error
    return entry, steps, old


def _read(params: Fields, entry: Entry, old: Any, kind: str) -> Any:
    if kind and kind not in value_text.KINDS:
        raise UserValueError(
            path=entry.path,
            expected=f"a type, one of {', '.join(value_text.KINDS)}",
            got=kind,
            names=value_text.KINDS,
            hint=about_path(params, entry.path),
        )
    try:
        return value_text.read_value(entry.text, old, kind)
    except ValueError as error:
        hints = about_path(params, entry.path), "" if kind else _other_kind(entry)
        raise _at_path(error, entry.path, *hints) from error


def _at_path(error: Exception, path: str, *hints: str) -> UserError:
    if not (isinstance(error, UserError) and error.expected):
        message = f"{path}: {error}".removeprefix(": ")
        return UserValueError(message, path=path, hint=" ".join(filter(None, hints)))
    return type(error)(
        path=error.path or path,
        expected=error.expected,
        got=error.got,
        hint=" ".join(filter(None, [error.hint, *hints])),
    )


def _other_kind(entry: Entry) -> str:
    """Returns a hint to name the type that the entry's text looks like, or ""."""
    is_word = entry.text.isidentifier()
    if not is_word and not entry.text.startswith(("[", "(", "{")):
        return ""
    with contextlib.suppress(ValueError):
        kind = value_text.kind_of(value_text.infer_value(entry.text))
        return f"If it may be a {kind} too, write '{replace(entry, kind=kind)}'."
    return ""
