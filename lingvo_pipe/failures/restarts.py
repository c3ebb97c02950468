"""A process that replaces itself by a new one, which does the same from the start.

TensorFlow can't be freed from a worker that hangs: a step that waits for it waits for
ever, and so does a second connection. A new program image in the same process can. It
keeps the process id, and the system gives back what the old one held, locks included.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from lingvo_pipe.failures.death_signal import death_signal, set_death_signal

_VARIABLE = "LINGVO_PIPE_RESTARTS"
_CLIENT_VARIABLE = "LINGVO_PIPE_CLIENT_BEFORE"
_INHERITED = 3  # Standard input, output and error.
MOST_IN_A_ROW = 5


@dataclass(frozen=True)
class ProcessStart:
    """How this process was started: note it first of all.

    Attributes:
        command: the interpreter and its arguments.
        folder: where.
        environment: the variables of its environment.
        death_signal: what it gets when its parent dies; 0: nothing.
    """

    command: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    death_signal: int = 0

    @classmethod
    def now(cls) -> ProcessStart:
        """As it is now."""
        command = (sys.executable, *sys.orig_argv[1:])
        return cls(command, os.getcwd(), dict(os.environ), death_signal())

    def again(self, **changes: str) -> NoReturn:
        """Replaces the process; works from any thread, whatever the others do.

        Args:
            **changes: to the variables of its environment.
        """
        # What TensorFlow has opened must not stay open: its port, and connections that
        # tell workers that this trainer is still there.
        for name in os.listdir("/dev/fd"):
            if int(name) >= _INHERITED:
                _close_on_exec(int(name))
        if self.death_signal:  # It is the main thread's, and another may call this.
            set_death_signal(self.death_signal)
        os.chdir(self.folder)
        os.execve(self.command[0], self.command, {**self.environment, **changes})


class Restarts:
    """How often in a row a process was restarted without getting on.

    The number passes from one to the next in their environment, and so does the one by
    which workers knew the process before.

    Args:
        start: how this process was started.
        progress: returns what is another text whenever there is something new that a
            restart will not repeat.
    """

    def __init__(self, start: ProcessStart, progress: Callable[[], str]) -> None:
        self._start, self._progress = start, progress
        self._number, self._reached = _read(start.environment.get(_VARIABLE, ""))

    @property
    def in_a_row(self) -> int:
        """How many there have been since the last progress."""
        return self._number if self._progress() == self._reached else 0

    @property
    def client_before(self) -> int | None:
        """By which number workers knew the process before; None: there was none."""
        told = self._start.environment.get(_CLIENT_VARIABLE, "")
        return int(told) if told.isdecimal() else None

    def again(self, client: int | None) -> NoReturn:
        """Restarts this process.

        Args:
            client: by which number workers know it; None: they don't.
        """
        told = {
            _VARIABLE: f"{self.in_a_row + 1} {self._progress()}",
            _CLIENT_VARIABLE: "" if client is None else str(client),
        }
        self._start.again(**told)


def _read(text: str) -> tuple[int, str]:
    number, _, reached = text.partition(" ")
    return (int(number), reached) if number.isdecimal() else (0, "")


def _close_on_exec(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # It was closed meanwhile.
        os.set_inheritable(descriptor, False)
