"""Params to text.

The text rebuilds the values in fresh Params of the same class, whatever was set:
nested Params that a fresh one may lack are written as a template first, and a value
that would be read as something else in its place is written with its type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lingvo_pipe.hyperparams.entries import Entry
from lingvo_pipe.hyperparams.instantiable_params import InstantiableParams
from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.templates import (
    build_template,
    fresh_params,
    template_text,
)
from lingvo_pipe.hyperparams.value_write import kind_of, write_value


def write_entries(params: Params) -> Iterator[tuple[Entry, str]]:
    """Yields entries, names sorted, each with the name of its value's type.

    Raises:
      ValueError: A value has no text form.
    """
    fresh = None
    if isinstance(params, InstantiableParams):
        fresh = fresh_params(params.cls)
    return _params_entries("", params, fresh)


def _params_entries(
    prefix: str, params: Params, fresh: Params | None
) -> Iterator[tuple[Entry, str]]:
    """Yields the entries of `params`; `fresh` is what the reader will have there."""
    for name, value in sorted(params.IterParams(), key=lambda item: item[0]):
        if prefix and name == "cls" and isinstance(params, InstantiableParams):
            continue  # The template has said it.
        if fresh is not None and name in fresh:
            expected = fresh.Get(name)
        else:
            expected = params._fields[name].default
        yield from _value_entries(f"{prefix}{name}", value, expected)


def _value_entries(path: str, value: Any, expected: Any) -> Iterator[tuple[Entry, str]]:
    if _is_there(value, expected):
        yield from _params_entries(f"{path}.", value, expected)
        return
    try:
        text, nested = write_value(value), list(_nested_params(path, value))
    except ValueError as error:
        raise ValueError(f"{path!r} has no text form: {error}.") from error
    yield Entry(path, text, _kind_to_name(value, expected)), kind_of(value)
    for inner_path, inner in nested:
        fresh = build_template(template_text(inner))
        yield from _params_entries(f"{inner_path}.", inner, fresh)


def _is_there(value: Any, expected: Any) -> bool:
    """Whether the reader has plain Params of the same names in this place."""
    if not type(value) is type(expected) is Params:
        return False
    return set(value.GetKeys()) == set(expected.GetKeys())


def _kind_to_name(value: Any, expected: Any) -> str:
    """Returns the type to name in the entry; "" if it is read right without."""
    kind, expected_kind = kind_of(value), kind_of(expected)
    if value is None or expected is None or expected_kind in ("", kind):
        return ""
    if (kind, expected_kind) == ("int", "float") and abs(value) <= 2**53:
        return ""
    return kind


def _nested_params(path: str, value: Any) -> Iterator[tuple[str, Params]]:
    """Yields the Params in `value`, outermost only, with their paths."""
    if isinstance(value, Params):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _nested_params(f"{path}[{i}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            for inner_path, inner in _nested_params(f"{path}[{key!r}]", item):
                if type(key) not in (int, str):
                    raise ValueError(
                        "Params in a dict must have an int or a string as key; "
                        f"got {key!r}"
                    )
                yield inner_path, inner
