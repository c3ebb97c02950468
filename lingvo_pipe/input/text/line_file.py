r"""The lines of a text file, to be read in any order.

The file stays on disk: of it, memory holds 16 bytes for each line. Lines end in \n or
\r\n and in nothing else, so that two files line by line stay side by side whatever
other separators their sentences contain.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

_NEWLINE, _SPACE = 10, 32
_MARK = b"\xef\xbb\xbf"  # What some editors begin a file with, to say it is UTF-8.
_BLOCK_BYTES = 1 << 26
_BLOCK_LINES = 1 << 16


class LineFile:
    """A text file in UTF-8, opened.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is empty, or a line is not UTF-8.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            if file.read(len(_MARK) + 1) in (b"", _MARK):
                raise ValueError(
                    f"A text file must have at least one line; {path} is empty. Name "
                    "another file."
                )
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts, self._ends = _line_bounds(self._bytes)
        self._check_encoding()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, line: int) -> bytes:
        """Returns a line, counted from 0, without its end."""
        return self.between(line, line + 1)

    def between(self, first: int, after: int) -> bytes:
        """Returns the text of lines `first` to `after` (excluded), at least one."""
        text = self._bytes[self._starts[first] : self._ends[after - 1]]
        return text.removesuffix(b"\r")

    def num_bytes(self, first: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Returns the sizes of texts as of `between`, line ends counted: int64 [K]."""
        return self._ends[after - 1] - self._starts[first]

    def is_blank(self) -> np.ndarray:
        """Returns for each line whether nothing is in it but ASCII spaces: bool [N]."""
        every = np.frombuffer(self._bytes, np.uint8)
        # The newline is a line's own byte, so that none is without one.
        return np.maximum.reduceat(every, self._starts) <= _SPACE

    def _check_encoding(self) -> None:
        for first in range(0, len(self), _BLOCK_LINES):
            after = min(first + _BLOCK_LINES, len(self))
            start = self._starts[first]
            try:
                self._bytes[start : self._ends[after - 1]].decode("utf-8")
            except UnicodeDecodeError as error:
                line = np.searchsorted(self._ends, start + error.start)
                raise ValueError(
                    f"A text file must be in UTF-8; line {line + 1} of {self.path} is "
                    f"not: {error.reason}. Convert the file, such as by iconv."
                ) from error


def _line_bounds(every: mmap.mmap) -> tuple[np.ndarray, np.ndarray]:
    """Returns where lines start and, before their newline, end: int64 [N] each."""
    first = len(_MARK) if every[: len(_MARK)] == _MARK else 0
    ends = np.concatenate(list(_newlines(every)))
    if every[-1] != _NEWLINE:
        ends = np.append(ends, len(every))
    return np.concatenate([[first], ends[:-1] + 1]), ends


def _newlines(every: mmap.mmap) -> Iterator[np.ndarray]:
    for start in range(0, len(every), _BLOCK_BYTES):
        block = np.frombuffer(every[start : start + _BLOCK_BYTES], np.uint8)
        yield np.flatnonzero(block == _NEWLINE) + start
