"""One line of a text: `path : value`, or `path (type) : value`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lingvo_pipe.hyperparams.literals import QUOTED

_HEAD = re.compile(
    rf"(?P<path>(?:{QUOTED.pattern}|[^:;()\n'\"])+?)\s*(?:\((?P<kind>\w*)\)\s*)?:"
)

_TOKEN = re.compile(rf"{QUOTED.pattern}|.", re.DOTALL)
_OPENING, _CLOSING = ("[", "(", "{"), ("]", ")", "}")


@dataclass(frozen=True)
class Entry:
    """A value's text and where it belongs."""

    path: str
    text: str
    kind: str = ""  # The name of the value's type, where it must be given.

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"{self.path}{kind} : {self.text}"


def check_separator(separator: str) -> None:
    """Raises a ValueError unless `separator` cannot be part of an entry."""
    if not re.fullmatch(r"\s*;\s*|[ \t]*\n\s*", separator):
        raise ValueError(
            "A separator of entries must be a newline or ';', blanks apart; "
            f"got {separator!r}."
        )


def split_entries(text: str, separator: str) -> Iterator[str]:
    """Yields the text of every entry.

    Newlines and `separator` end an entry, except in quotes and brackets that open
    where a value does. Lines that start with # are left out.
    """
    ends = ";\n" if ";" in separator else "\n"
    between = re.compile(rf"(?:[\s{ends}]|#[^\n]*)+")
    until_end = re.compile(rf"[^{ends}]*")
    at = 0
    while True:
        blank = between.match(text, at)
        start = blank.end() if blank else at
        if start == len(text):
            return
        head = _HEAD.match(text, start)
        after = _skip_value(text, head.end()) if head else start
        at = until_end.match(text, after).end()  # type: ignore[union-attr]
        yield text[start:at].strip()


def parse_entry(text: str) -> Entry:
    """Returns the entry that `text` is.

    Raises:
      ValueError: It is none.
    """
    head = _HEAD.match(text)
    if not head:
        raise ValueError(f"An entry must be `path : value`; got {text!r}.")
    return Entry(head["path"].strip(), text[head.end() :].strip(), head["kind"] or "")


def _skip_value(text: str, at: int) -> int:
    """Returns where the quoted or bracketed value at `at` ends; else `at`."""
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    quoted = QUOTED.match(text, at)
    if quoted:
        return quoted.end()
    start, depth = at, 0
    for token in _TOKEN.finditer(text, at):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        if depth == 0:
            return token.end() if token.start() > start else start
    return start  # Brackets that never close end with the line.
