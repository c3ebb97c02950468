"""Standard streams that outlive their reader, as in `trainer ... | head`."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _LastingFile(io.FileIO):
    """A file that continues as another one when its reader has gone away.

    All who write to its descriptor continue there, TensorFlow included.
    """

    def __init__(self, descriptor: int, others: list[int]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._others = others

    def write(self, data: Any, /) -> int:
        """Writes to the first file that still has a reader."""
        while True:
            try:
                return super().write(data)
            except BrokenPipeError:
                os.dup2(self._others.pop(0), self.fileno())


def keep_output() -> None:
    """Lets this process write on when the reader of a standard stream goes away.

    Standard output continues on standard error, and that without a reader nowhere.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.stderr = _lasting(sys.stderr, [nowhere])
    sys.stdout = _lasting(sys.stdout, [sys.stderr.fileno(), nowhere])


def _lasting(stream: Any, others: list[int]) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(stream.fileno(), others)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
