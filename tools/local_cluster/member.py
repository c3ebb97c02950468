"""One process of the cluster: started, heard, killed and started again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

_BOUND = "tools.local_cluster.bound_process"
# Seconds for what a process said last; another may have inherited its output.
_TO_REPEAT = 5.0


class Member:
    """A process whose every line is repeated, after its name.

    Args:
        name: such as `worker:0`.
        arguments: of Python.
        cores: that it may use; none: all of them.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], cores: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._command = [
            *(sys.executable, "-m", _BOUND, str(os.getpid())),
            ",".join(map(str, cores)),
            *(sys.executable, *arguments),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._listeners: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        """Of the process that runs, or was the last to."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it; to be called by the main thread, with whose end it ends."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A Ctrl-C is for us: the trainer needs its workers to save what it has.
            start_new_session=True,
        )
        print(f"{self.name}: process {self.pid}.", flush=True)
        pairs = (self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)
        self._listeners = [
            threading.Thread(target=self._repeat, args=pair, daemon=True)
            for pair in pairs
        ]
        for listener in self._listeners:
            listener.start()

    def exit_code(self) -> int | None:
        """Negative if a signal ended it; None: it runs."""
        assert self._process is not None
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Sends a signal; nothing happens if it has ended."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        """Kills it if it runs, and waits until all that it said has been repeated."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for listener in self._listeners:
            listener.join(_TO_REPEAT)

    def _repeat(self, source: TextIO, to: TextIO) -> None:
        with source:
            for line in source:
                # If nobody listens to us any more, it may still go on.
                with contextlib.suppress(OSError):
                    to.write(f"{self.name} | {line.rstrip()}\n")
                    to.flush()
