"""Handling of termination signals.

They are SIGTERM from a cluster's scheduler, Ctrl-C, and a terminal's SIGHUP when it
goes away.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class TerminationSignals:
    """A context manager that remembers termination signals instead of ending at once.

    If `on_signal` is given, it is called with every signal. If not, a SIGINT after the
    first signal acts as it would without this object. A second SIGTERM does nothing,
    since schedulers may send several. A SIGHUP that is ignored, as by nohup, stays
    ignored. Outside the main thread the object does nothing.
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

    def __enter__(self) -> "TerminationSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._remember)
                for number in self._signals
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
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
    """A watcher for termination signals, which any thread may ask for the first one.

    Python's own handlers would wait while the main thread hangs in TensorFlow. So the
    number of each signal is written to a socket (see signal.set_wakeup_fd), which `get`
    reads. Create only one object per process, in the main thread.
    """

    def __init__(self) -> None:
        self._read, self._written, _ = _receive_signals()
        self._read.setblocking(False)
        self._first: signal.Signals | None = None

    def get(self) -> signal.Signals | None:
        """Returns the first termination signal that has come, or None."""
        with contextlib.suppress(OSError):  # No signal has come, or `close` was called.
            self._first = self._first or _first_of(self._read.recv(4096))
        return self._first

    def close(self) -> None:
        """Stops watching. `get` still returns a signal that has come before."""
        self.get()
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._written.close()


def _receive_signals() -> tuple[socket.socket, socket.socket, int]:
    """Returns (socket that gets signals' numbers, its other end, wakeup fd before)."""
    read, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    return read, written, before


def _first_of(numbers: bytes) -> signal.Signals | None:
    return next((s for s in map(signal.Signals, numbers) if s in _SIGNALS), None)


@contextlib.contextmanager
def announcing_signals(announce: Callable[[str], None]) -> Iterator[None]:
    """Calls `announce` with the first termination signal's name, on a thread, at once.

    If signals had a wakeup fd before, their numbers are passed on to that fd. Outside
    the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, written, before = _receive_signals()

    def watch() -> None:
        first = None
        while numbers := read.recv(4096):  # Empty after `written` is closed.
            if before >= 0:
                os.write(before, numbers)
            if first is None and (first := _first_of(numbers)):
                announce(first.name)

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
    """Makes SIGTERM end this process with code 143, also as a container's process 1."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
