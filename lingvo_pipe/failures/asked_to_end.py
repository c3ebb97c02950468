"""Signals that ask a process to end, also while its main thread hangs.

Python runs a signal's handler in the main thread, which may never leave TensorFlow. But
the number of a signal that is handled is written to a pipe at once, by the system's
handler, and any thread may read it there.
"""

from __future__ import annotations

import signal
import socket

_ENDING = (signal.SIGTERM, signal.SIGINT)


class AskedToEnd:
    """Notes signals from now on; to be made in the main thread, once."""

    def __init__(self) -> None:
        self._read, self._written = socket.socketpair()
        self._read.setblocking(False)
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self._by: signal.Signals | None = None

    def by(self) -> signal.Signals | None:
        """The first signal that asked; None: none has."""
        try:
            numbers = self._read.recv(4096)
        except OSError:  # None has come, or it was closed meanwhile.
            numbers = b""
        asked = [s for s in map(signal.Signals, numbers) if s in _ENDING]
        if asked and self._by is None:
            self._by = asked[0]
        return self._by

    def close(self) -> None:
        """Notes no more signals."""
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._written.close()
