"""Keeps a second trainer away from the directory of a run."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO

LOCK_NAME = "lock"


class RunLock:
    """The right to write to a run's directory, of one process at a time.

    The system takes it from a process that ends, however it ends. So a lock is never
    stale: the file that is left behind says who had it last, and holds nobody up.
    """

    def __init__(self, directory: Path) -> None:
        """Initialises a lock that is not held yet.

        Args:
            directory: the run's.
        """
        self._path = directory / LOCK_NAME
        self._file: TextIO | None = None

    def acquire(self) -> None:
        """Takes the lock; nothing is done if it is held already.

        Raises:
            ValueError: if another process holds it.
        """
        if self._file is not None:
            return
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ValueError(
                "A run must be trained by one trainer at a time; "
                f"{self._path.parent} is in use by {holder}. Wait until it ends or "
                "stop it, or choose another --logdir."
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        if self._file is not None:
            self._file.close()
            self._file = None
