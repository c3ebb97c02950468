"""Splits texts of Params into entries `path : value` or `path (type) : value`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams.literals import QUOTED, RAW_QUOTED
from lingvo_pipe.hyperparams.old_names import current_path, current_value

_HEAD = re.compile(
    rf"(?P<path>(?:{QUOTED.pattern}|[^:;()\n'\"])+?)\s*(?:\((?P<kind>\w*)\)\s*)?:"
)

_TOKEN = re.compile(rf"{RAW_QUOTED.pattern}|.", re.DOTALL)
_RAW_STRING = re.compile(rf"(?:{RAW_QUOTED.pattern})(?=[ \t]*(?:\n|$))", re.DOTALL)
_OPENING, _CLOSING = ("[", "(", "{"), ("]", ")", "}")


@dataclass(frozen=True)
class Entry:
    """A param's path, its value as text, and the type named in parentheses, or ""."""

    path: str
    text: str
    kind: str = ""

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"{self.path}{kind} : {self.text}"


def is_below(path: str, parents: Iterable[str]) -> bool:
    """Returns whether a param is one of `parents`, or inside of one."""
    return any(path == x or path.startswith((f"{x}.", f"{x}[")) for x in parents)


def parse_entry(text: str) -> Entry:
    """Parses `path : value` or `path (type) : value`. Replaces outdated names."""
    head = _HEAD.match(text)
    if not head:
        raise UserValueError(expected="an entry `path : value`", got=text)
    path, value = head["path"].strip(), text[head.end() :].strip()
    return Entry(current_path(path), current_value(value), head["kind"] or "")


def entries_by_path(text: str) -> dict[str, Entry]:
    """Returns a dict from path to entry, for all entries of a text.

    Raises:
        ValueError: if a line is not an entry.
    """
    entries = map(parse_entry, split_entries(text, "\n"))
    return {entry.path: entry for entry in entries}


def split_entries(text: str, separator: str) -> Iterator[str]:
    """Yields each entry's text. A separator in quotes or brackets ends no entry."""
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


def check_separator(separator: str) -> None:
    """Raises ValueError unless `separator` is a newline or semicolon, blanks aside."""
    if not re.fullmatch(r"\s*;\s*|[ \t]*\n\s*", separator):
        expected = "a newline or ';', apart from blanks"
        raise UserValueError(path="separator", expected=expected, got=separator)


def _skip_value(text: str, at: int) -> int:
    """Returns the index after the quoted or bracketed value that starts at `at`.

    For other values, returns the index of the first character that is no blank.
    """
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    if quoted := QUOTED.match(text, at) or _RAW_STRING.match(text, at):
        return quoted.end()
    start, depth = at, 0
    for token in _TOKEN.finditer(text, at):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        if depth == 0:
            return token.end() if token.start() > start else start
    return start  # Brackets that never close end with the line.
