"""Names in messages: known names near an unknown one, and the first of many names."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def near_names(name: str, known: Iterable[Any]) -> list[str]:
    """Returns up to three strings of `known` that `name` may be a misspelling of."""
    by_lower = {x.lower(): x for x in known if isinstance(x, str)}
    # Two swapped letters in a two-letter name still share one: a ratio of 0.5.
    cutoff = 0.5 if len(name) <= 3 else 0.6
    matches = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'a' or 'b'?", or "" if no known name is similar."""
    return suggest(near_names(name, known))


def suggest(names: Iterable[str]) -> str:
    """Returns " Did you mean 'a' or 'b'?", or "" if there are no names."""
    listed = " or ".join(map(repr, names))
    return f" Did you mean {listed}?" if listed else ""


def first_names(names: Sequence[str], most: int) -> str:
    """Returns "a, b and 3 more", with `most` names at most."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more
