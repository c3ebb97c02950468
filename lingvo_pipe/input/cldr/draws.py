"""Numbers that look random and are functions of a key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")

_DIGEST_BITS = 512
# What is left of a digest's range when another is taken: a draw below n prefers some
# numbers by n / 2**64 at most.
_MIN_RANGE = 2**64


class Draws:
    """Draws whole numbers, one after the other.

    The same key gives the same numbers wherever and under whichever Python: they are
    the digits of BLAKE2b hashes of the key and a counter.

    Args:
        *key: Numbers and texts.
    """

    def __init__(self, *key: int | str) -> None:
        self._key = repr(key)
        self._num_digests = 0
        self._digits = 0
        self._range = 1

    def below(self, limit: int) -> int:
        """Returns a number from 0 to `limit` - 1, each as likely as the others."""
        if self._range < limit * _MIN_RANGE:
            text = f"{self._key} {self._num_digests}".encode()
            self._digits = int.from_bytes(hashlib.blake2b(text).digest(), "little")
            self._range = 2**_DIGEST_BITS
            self._num_digests += 1
        self._digits, number = divmod(self._digits, limit)
        self._range //= limit
        return number

    def one_of(self, options: Sequence[_T]) -> _T:
        """Returns one of the options, each as likely as the others."""
        return options[self.below(len(options))]
