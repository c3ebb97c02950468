"""Starts trainers one after another, to be watched and killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.trainer.command_line import CommandLine

_PROGRAM = Path(__file__).with_name("fork_trainers.py")


class ForkedTrainers:
    """Trainers that are forks of one process, of which one runs at a time.

    Use them as a context manager, which ends the one that still runs.
    """

    def __init__(self, command_line: CommandLine, said: Path):
        """Initialises them.

        Args:
            command_line: the program that they are forks of runs as it says.
            said: the file for what the present trainer writes, or the last one has.
        """
        self._program = command_line.start(str(_PROGRAM))
        self._said = said
        self._pid: int | None = None

    def start(self, *flags: str, most_bytes: int | None = None) -> None:
        """Starts the next trainer; the last one has been waited for.

        Args:
            *flags: of the trainer.
            most_bytes: how long a file may become that it writes; None: any length.
        """
        assert self._pid is None
        self._said.unlink(missing_ok=True)
        line = json.dumps([flags, str(self._said), most_bytes])
        print(line, file=self._pipe("stdin"), flush=True)
        self._pid = int(self._pipe("stdout").readline())

    def kill(self) -> int:
        """Kills it, if it runs; returns its exit code, as of `wait`."""
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
            os.kill(self._pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Waits until it ends; returns its exit code, negative if a signal ended it."""
        self._pid = None
        return int(self._pipe("stdout").readline())

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        assert self._pid is not None
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def said(self) -> str:
        """What it has written so far, to standard output and standard error."""
        return self._said.read_text() if self._said.exists() else ""

    def _pipe(self, name: str) -> Any:
        return getattr(self._program, name)

    def __enter__(self) -> ForkedTrainers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pid is not None:
            self.kill()
        self._program.communicate()
