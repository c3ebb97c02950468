"""Differences of two Params or two texts: `>` marks the first, `<` the second."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from lingvo_pipe.hyperparams.fields import Fields
from lingvo_pipe.hyperparams.frozen_values import same_value
from lingvo_pipe.hyperparams.text_entries import entries_by_path

_ABSENT = object()
_CONTAINERS = (Fields, dict, list, tuple)


def diff_params(a: Fields, b: Fields) -> str:
    """Returns the differences as lines in Lingvo's form, or "" if nothing differs.

    A param has the lines `> name: value` and `< name: value`. A list's item has the
    name `name[0]`. The lines of nested Params or dicts follow a line `? name:`.
    """
    return _diff(_by_name(a, b), " ")


def diff_texts(a: str, b: str) -> str:
    """Returns entries that differ, as lines `> entry` of `a` and `< entry` of `b`."""
    a_entries, b_entries = entries_by_path(a), entries_by_path(b)
    return "".join(
        f"{mark} {entries[path]}\n"
        for path in dict.fromkeys([*a_entries, *b_entries])
        if a_entries.get(path) != b_entries.get(path)
        for mark, entries in ((">", a_entries), ("<", b_entries))
        if path in entries
    )


def _diff(pairs: Iterable[tuple[str, Any, Any]], indent: str) -> str:
    lines = ""
    for name, a, b in pairs:
        if same_value(a, b):
            continue
        shared_kinds = [k for k in _CONTAINERS if isinstance(a, k) and isinstance(b, k)]
        if shared_kinds and shared_kinds[0] in (Fields, dict):
            lines += f"?{indent}{name}:\n{_diff(_by_name(a, b), indent + '  ')}"
        elif shared_kinds:
            items = enumerate(itertools.zip_longest(a, b, fillvalue=_ABSENT))
            lines += _diff(((f"{name}[{i}]", *pair) for i, pair in items), indent)
        else:
            lines += "".join(
                f"{mark}{indent}{name}: {value}\n"
                for mark, value in ((">", a), ("<", b))
                if value is not _ABSENT
            )
    return lines


def _by_name(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    a_values, b_values = (
        dict(x.IterParams() if isinstance(x, Fields) else x) for x in (a, b)
    )
    for name in sorted({*a_values, *b_values}, key=str):
        yield str(name), a_values.get(name, _ABSENT), b_values.get(name, _ABSENT)
