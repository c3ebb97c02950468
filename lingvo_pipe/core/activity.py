"""Messages about long work: a spinner on a terminal, or a few lines in a file."""

import contextlib
import contextvars
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

_TERMINAL_DELAY, _FILE_DELAY = 0.5, 5.0  # Seconds before anything is shown.
_PERIOD = 0.2  # Seconds between two frames of the spinner.


@contextlib.contextmanager
def activity(
    name: str, stream: TextIO | None = None, file_delay: float = _FILE_DELAY
) -> Iterator[None]:
    """Shows `name`, the detail that `set_detail` sets, and the time, during the block.

    A file `stream` shows nothing in the first `file_delay` seconds.
    """
    shown = _Shown(name, sys.stderr if stream is None else stream, file_delay)
    thread = threading.Thread(target=shown.run, daemon=True)
    token = _CURRENT.set(shown)
    thread.start()
    try:
        yield
    finally:
        _CURRENT.reset(token)
        shown.ended.set()
        thread.join()


def set_detail(detail: str) -> None:
    """Shows a detail, such as "layer 3 of 8", in the current activity, if any."""
    if shown := _CURRENT.get():
        shown.detail = f", {detail}"


class _Shown:
    """The display of an activity. A thread calls `run`, which `ended` stops."""

    def __init__(self, name: str, stream: TextIO, file_delay: float) -> None:
        self._name, self._stream, self._file_delay = name, stream, file_delay
        self.detail, self._start = "", time.monotonic()
        self.ended = threading.Event()

    def run(self) -> None:
        # A closed stream must not stop the work that it would have shown.
        with contextlib.suppress(OSError, ValueError):
            if self._stream.isatty():
                self._spin()
            else:
                self._write_lines()

    def _spin(self) -> None:
        if self.ended.wait(_TERMINAL_DELAY):
            return
        import tqdm  # Late, so that --help takes milliseconds.

        with tqdm.tqdm(file=self._stream, bar_format="{desc}", leave=False) as bar:
            for frame in itertools.cycle("|/-\\"):
                bar.set_description_str(f"{frame} {self._text()}")
                if self.ended.wait(_PERIOD):
                    return

    def _write_lines(self) -> None:
        delay = self._file_delay
        while not self.ended.wait(delay):
            self._stream.write(f"{self._text()}\n")
            self._stream.flush()
            delay = max(10.0, time.monotonic() - self._start)

    def _text(self) -> str:
        seconds = round(time.monotonic() - self._start)
        return f"{self._name}{self.detail} ... {seconds} s"


_CURRENT: contextvars.ContextVar[_Shown | None] = contextvars.ContextVar(
    "current activity", default=None
)
