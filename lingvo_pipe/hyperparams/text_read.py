"""Text to Params."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace

from lingvo_pipe.hyperparams.about import about_path
from lingvo_pipe.hyperparams.entries import (
    Entry,
    check_separator,
    parse_entry,
    split_entries,
)
from lingvo_pipe.hyperparams.faults import Transaction
from lingvo_pipe.hyperparams.navigate import Steps, Undo, assign, resolve
from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.path import parse_path
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.hyperparams.value_read import KINDS, infer_value, read_value
from lingvo_pipe.hyperparams.value_write import kind_of

# What is meant to be a path, in whatever is no entry.
_PATH = re.compile(r"[^\s:=(]*")


def read_entries(
    params: Params, text: str, type_overrides: Mapping[str, str], separator: str
) -> None:
    """Sets params from text, all or none; see Params.FromText."""
    check_separator(separator)
    found: set[Steps] = set()
    with Transaction() as transaction:
        for entry_text in split_entries(text, separator):
            with transaction.attempt():
                entry, steps = _find(params, entry_text)
                if steps in found:
                    raise ValueError(
                        f"A param must be set once; {entry.path!r} is there a second "
                        "time. Leave one of them out."
                    )
                found.add(steps)
                kind = entry.kind or type_overrides.get(entry.path, "")
                transaction.on_undo(_read_entry(params, entry, steps, kind))


def _find(params: Params, text: str) -> tuple[Entry, Steps]:
    """Returns the entry that a text is, and where its param is."""
    try:
        entry = parse_entry(text)
        steps = parse_path(entry.path)
        resolve(params, steps)
    except (AttributeError, ValueError) as error:
        meant = _PATH.match(text)[0]  # type: ignore[index]
        raise type(error)(f"{error}{about_path(params, meant)}") from error
    return entry, steps


def _read_entry(params: Params, entry: Entry, steps: Steps, kind: str) -> Undo:
    if kind and kind not in KINDS:
        raise ValueError(
            f"The type of {entry.path!r} must be one of {', '.join(KINDS)}; "
            f"got {kind!r}.{did_you_mean(kind, KINDS)}"
            f"{about_path(params, entry.path)}"
        )
    try:
        value = read_value(entry.text, resolve(params, steps), kind)
    except ValueError as error:
        end = "" if str(error).endswith((".", "?")) else "."
        hint = "" if kind else _other_kind(entry)
        about = about_path(params, entry.path)
        raise ValueError(
            f"Cannot read {entry.path!r}: {error}{end}{about}{hint}"
        ) from error
    return assign(params, steps, value)


def _other_kind(entry: Entry) -> str:
    """How to write an entry whose value is to become of the kind that it looks like."""
    is_word = entry.text.isidentifier()
    if not is_word and not entry.text.startswith(("[", "(", "{")):
        return ""
    with contextlib.suppress(ValueError):
        kind = kind_of(infer_value(entry.text))
        return f" If it may be a {kind} too, write '{replace(entry, kind=kind)}'."
    return ""
