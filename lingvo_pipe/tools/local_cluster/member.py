"""A process of the cluster: its start, its output and its end. Pure."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from lingvo_pipe.tools.bound_process import bound_python

# Seconds to wait for a process's last lines; another may have inherited its output.
_FORWARD_SECONDS = 5.0


class Member:
    """A process of Python, whose name precedes each line of its output.

    It runs on `cores`, or on all if there are none.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], cores: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._command = bound_python(cores, *arguments)
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running process, or the last one."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Starts the process.

        Call this in the main thread, because the process ends with the thread that
        started it.
        """
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is for the supervisor: the trainer needs its workers to save.
            start_new_session=True,
        )
        print(f"{self.name}: process {self.process.pid}.", flush=True)
        pairs = (self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)
        self._threads = [
            threading.Thread(target=self._forward, args=pair, daemon=True)
            for pair in pairs
        ]
        for thread in self._threads:
            thread.start()

    def exit_code(self) -> int | None:
        """Returns the exit code, negative for a signal, or None if it runs."""
        return self.process.poll()

    def end(self) -> None:
        """Kills it if it runs, and waits until all its output has been forwarded."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(_FORWARD_SECONDS)

    def _forward(self, source: TextIO, target: TextIO) -> None:
        with source:
            for line in source:
                # If nobody reads the output any more, the process continues.
                with contextlib.suppress(OSError):
                    target.write(f"{self.name} | {line.rstrip()}\n")
                    target.flush()
