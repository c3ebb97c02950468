"""What differs between two texts of Params, as `Params.ToText` writes them."""

from __future__ import annotations

from lingvo_pipe.hyperparams.entries import Entry, parse_entry, split_entries


def entries_by_path(text: str) -> dict[str, Entry]:
    """The entries of a text, one a line.

    Raises:
      ValueError: a line is none.
    """
    entries = map(parse_entry, split_entries(text, "\n"))
    return {entry.path: entry for entry in entries}


def diff_texts(a: str, b: str) -> str:
    """Returns `> path : value` for what `a` has otherwise than `b`, `<` for `b`'s.

    Returns:
      The lines, each ended by a newline; "" if nothing differs.
    """
    ours, theirs = entries_by_path(a), entries_by_path(b)
    lines = []
    for path in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(path), theirs.get(path)
        if mine == other:
            continue
        lines += [f"> {mine}\n"] if mine is not None else []
        lines += [f"< {other}\n"] if other is not None else []
    return "".join(lines)
