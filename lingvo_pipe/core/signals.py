"""Termination signals as requests to stop, so that nothing is lost. Pure.

Schedulers of clusters send SIGTERM before they take a machine away, Ctrl-C SIGINT.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TerminationSignals:
    """A context manager that remembers termination signals instead of ending at once.

    By default a first signal is remembered, and a second SIGINT does what it would do
    without this object. A second SIGTERM changes nothing: schedulers may send several.

    With `on_signal`, which is called with every signal received, a second SIGINT has no
    other effect. Only the main thread may handle signals; in another one nothing is
    changed.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = _SIGNALS,
        on_signal: Callable[[signal.Signals], None] | None = None,
    ) -> None:
        self._signals, self._on_signal = signals, on_signal
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def last_signal_name(self) -> str | None:
        """The name of the last signal received, such as SIGTERM, or None."""
        return None if self._received is None else self._received.name

    def __enter__(self) -> TerminationSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                each: signal.signal(each, self._remember) for each in self._signals
            }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number)
        if self._on_signal is not None:
            self._on_signal(self._received)
        elif signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before.pop(signal.SIGINT))


class FirstSignal:
    """The first termination signal, even while the main thread hangs.

    Python runs a signal's handler in the main thread, which may hang in TensorFlow. But
    the system's handler writes the number of each handled signal to a socket at once,
    and any thread may read it there. Create the object in the main thread, once.
    """

    def __init__(self) -> None:
        self._read, self._written = socket.socketpair()
        self._read.setblocking(False)
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self._first: signal.Signals | None = None

    def get(self) -> signal.Signals | None:
        """Returns the first termination signal since creation, or None."""
        try:
            numbers = self._read.recv(4096)
        except OSError:  # No signal has come, or the socket is closed.
            numbers = b""
        received = [s for s in map(signal.Signals, numbers) if s in _SIGNALS]
        if received and self._first is None:
            self._first = received[0]
        return self._first

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._written.close()


@contextlib.contextmanager
def announcing_signals(announce: Callable[[str], None]) -> Iterator[None]:
    """Calls `announce` with the name of the first termination signal, on a thread.

    It does so at once, even while the main thread hangs, as `FirstSignal` does. Signals
    still reach an earlier reader of such a socket. In another thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        is_first = True
        while numbers := read.recv(4096):  # None after `written` is closed.
            if before >= 0:
                os.write(before, numbers)
            received = [s for s in map(signal.Signals, numbers) if s in _SIGNALS]
            if received and is_first:
                is_first = False
                announce(received[0].name)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        written.close()
        thread.join()
        read.close()


def exit_on_sigterm() -> None:
    """Makes SIGTERM exit this process with code 143 from now on.

    The system has no default action for the first process of a container.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
