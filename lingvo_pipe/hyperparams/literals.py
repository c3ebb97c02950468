"""A parser of nested lists, tuples and dicts, whose items may be bare words."""

import ast
import re
from collections.abc import Callable
from typing import Any

from lingvo_pipe.core.errors import UserValueError, Words

QUOTED = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
# Lingvo's strings may span lines.
RAW_QUOTED = re.compile(QUOTED.pattern.replace("\\n", ""), re.DOTALL)
_CLOSING = {"[": "]", "(": ")", "{": "}"}
# A word may contain a pair of parentheses: params(a, b).
_WORD = re.compile(r"[^,:\[\](){}'\"]*(?:\([^()]*\))?")


def read_plain(text: str) -> Any:
    """Reads a Python literal without importing or calling anything.

    Raises:
        ValueError: if the text is no literal.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UserValueError(
            expected="None, a bool, a number, a quoted string, or a list, tuple or "
            "dict of these",
            got=text,
        ) from None


class Literal:
    """A parser of one nested list, tuple or dict. `read_word` reads each leaf."""

    def __init__(self, text: str, read_word: Callable[[str], Any]) -> None:
        self._text, self._read_word, self._at = text, read_word, 0

    def parse(self) -> Any:
        """Returns the list, tuple or dict that the text describes.

        Raises:
            ValueError: if the text is malformed.
        """
        value = self._value()
        if self._at != len(self._text):
            raise self._problem("the end")
        return value

    def _value(self) -> Any:
        opening = self._peek()
        if opening not in _CLOSING:
            return self._word()
        self._at += 1
        if opening == "{":
            return dict(self._items(self._pair, "}"))
        items = self._items(self._value, _CLOSING[opening])
        return items if opening == "[" else tuple(items)

    def _items(self, item: Callable[[], Any], closing: str) -> list[Any]:
        items = []
        while not self._take(closing):
            items.append(item())
            if not self._take(",") and self._peek() != closing:
                raise self._problem(f"',' or '{closing}'")
        return items

    def _pair(self) -> tuple[Any, Any]:
        key = self._value()
        if not self._take(":"):
            raise self._problem("':'")
        try:
            hash(key)
        except TypeError:
            expected = "a key of a dict that can be hashed"
            raise UserValueError(expected=expected, got=key) from None
        return key, self._value()

    def _word(self) -> Any:
        place = self._text, self._at
        match = RAW_QUOTED.match(*place) or _WORD.match(*place)
        if not match or not match[0].strip():
            raise self._problem("a value")
        self._at = match.end()
        value = self._read_word(match[0].strip())
        self._peek()
        return value

    def _take(self, token: str) -> bool:
        taken = self._peek() == token
        self._at += taken
        return taken

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _problem(self, expected: str) -> ValueError:
        remaining = repr(self._text[self._at :]) if self._peek() else "the end"
        got = Words(f"{remaining} in {self._text!r}")
        return UserValueError(expected=expected, got=got)
