"""Output to standard streams whose reader may go away, as in `trainer ... | head`.

A terminal may go away, too, and the disk of a log may be full.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO

# Errors of a pipe without a reader, and of a terminal that has gone away.
_GONE = (errno.EPIPE, errno.EIO)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _LastingFile(io.FileIO):
    """A file that writes to the next file in `others` once its own reader is gone.

    What has no room on the disk is lost.
    """

    def __init__(self, descriptor: int, others: list[int]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._others = others

    def write(self, data: Any, /) -> int:
        """Writes to the first file that still has a reader."""
        while True:
            try:
                return super().write(data)
            except OSError as error:
                if error.errno in _FULL:
                    return len(data)
                if error.errno not in _GONE:
                    raise
                os.dup2(self._others.pop(0), self.fileno())


def keep_output() -> None:
    """Lets this process continue if a standard stream's reader or disk fails it."""
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


@contextlib.contextmanager
def ending_with_reader() -> Iterator[None]:
    """Ends the process silently if standard output is a pipe without a reader."""
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        if _has_reader(sys.stdout):  # The broken pipe is another one.
            raise
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.exit(1)


def _has_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return not poll.poll(0)  # Only errors are reported.
