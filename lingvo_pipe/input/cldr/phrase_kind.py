"""Kinds of phrases, such as dates or prices, and reproducible random numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from lingvo_pipe.input.cldr.language import Language

# A phrase's meaning, in no language: numbers, and codes of units or names.
Value = tuple[int | str, ...]
# The name of a value's kind, followed by the value.
Content = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of phrase, such as dates or prices.

    `draw` returns a random value for which both the given language and English have
    words. `render` writes a value in a language. Two Kinds with the same name write the
    same values in different styles.
    """

    name: str
    weight: int  # phrases of this kind in a hundred
    draw: Callable[[Draws, Language], Value]
    render: Callable[[Language, Value], str]
    is_name: bool = False  # True if a value is a single name, one of a few hundred
    # The names of the other kinds whose values are in a value, and these values' sizes.
    parts: tuple[tuple[str, int], ...] = ()

    def contents(self, value: Value) -> list[Content]:
        """Returns the pieces of a value that training and testing must not share."""
        items = iter(value)
        parts = self.parts or ((self.name, len(value)),)
        return [(name, *itertools.islice(items, size)) for name, size in parts]


_T = TypeVar("_T")

_DIGEST_BITS = 512
# A draw below n takes another digest if the remaining range is less than n times this.
# So it prefers some numbers by at most n / 2**64.
_MIN_RANGE = 2**64


class Draws:
    """A random generator that gives the same numbers for a key on every machine."""

    def __init__(self, *key: int | str) -> None:
        self._key = repr(key)
        self._num_digests, self._digits, self._range = 0, 0, 1

    def below(self, limit: int) -> int:
        """Returns a random integer from 0 to `limit` - 1, all equally likely."""
        if self._range < limit * _MIN_RANGE:
            text = f"{self._key} {self._num_digests}".encode()
            self._digits = int.from_bytes(hashlib.blake2b(text).digest(), "little")
            self._range = 2**_DIGEST_BITS
            self._num_digests += 1
        self._digits, number = divmod(self._digits, limit)
        self._range //= limit
        return number

    def one_of(self, options: Sequence[_T]) -> _T:
        """Returns a random element of `options`, all equally likely."""
        return options[self.below(len(options))]
