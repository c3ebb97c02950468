"""Restarts of this process by `exec`, and the number of restarts without progress.

The process starts its own command again in its place, and keeps its process id. All
open files are closed, except standard input, output and error.
"""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

MAX_IN_A_ROW = 5
_RESTARTS_VARIABLE = "LINGVO_PIPE_RESTARTS"
_CLIENT_VARIABLE = "LINGVO_PIPE_CLIENT_BEFORE"
_CAUSE_VARIABLE = "LINGVO_PIPE_RESTART_CAUSE"
_NUM_STANDARD_FILES = 3  # Standard input, output and error.
# Seconds for which a restart waits for a checkpoint that is being written.
_SAVE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MAX_CAUSE = 10_000  # Characters. The system limits a variable to 128 KiB.
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2  # From prctl(2), only on Linux.
# For each job, the folder in LOGDIR and the files in it that show progress.
_PROGRESS_FILES = {
    "trainer": ("checkpoints", "ckpt-*.index"),
    "evaler": ("evaler", "**/*"),
    "decoder": ("decoder", "**/*"),
    "exporter": ("export", "**/*"),
}


@dataclass(frozen=True)
class ProcessStart:
    """The command, folder and environment with which this process was started.

    `death_signal` is the signal that the process gets when its parent dies, or 0.
    """

    command: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    death_signal: int = 0

    @classmethod
    def now(cls) -> "ProcessStart":
        """Returns the current command, folder, environment and death signal."""
        command = (sys.executable, *sys.orig_argv[1:])
        return cls(command, os.getcwd(), dict(os.environ), _death_signal())

    def again(self, stop: Callable[[], None], **changes: str) -> NoReturn:
        """Restarts this process in place, with these environment variables set.

        `stop` is called last, and may end the process instead.
        """
        # TensorFlow's port and connections must not stay open, since workers would
        # still see this trainer.
        for name in os.listdir("/dev/fd"):
            if int(name) >= _NUM_STANDARD_FILES:
                with contextlib.suppress(OSError):  # It was closed meanwhile.
                    os.set_inheritable(int(name), False)
        if self.death_signal:  # Each thread has its own, and this may be any thread.
            set_death_signal(self.death_signal)
        os.chdir(self.folder)
        stop()
        os.execve(self.command[0], self.command, {**self.environment, **changes})


class Restarts:
    """A counter of the process's consecutive restarts without progress.

    `progress` returns a text that changes whenever the job's progress is safe on disk.
    `is_saving` returns whether a checkpoint is being written. Its values are in this
    process's memory, so a restart waits for it, for some time. Environment variables
    pass the count, the cause and the number that workers know to the next process.
    """

    def __init__(
        self,
        start: ProcessStart,
        progress: Callable[[], str],
        is_saving: Callable[[], bool] = lambda: False,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._start, self.progress, self._is_saving = start, progress, is_saving
        self._log = log
        text = start.environment.get(_RESTARTS_VARIABLE, "")
        number, _, self._reached = text.partition(" ")
        self._number = int(number) if number.isdecimal() else 0

    @property
    def in_a_row(self) -> int:
        """The number of restarts since the last progress."""
        return self._number if self.progress() == self._reached else 0

    @property
    def client_before(self) -> int | None:
        """The number by which workers knew this process before the restart, or None."""
        number = self._start.environment.get(_CLIENT_VARIABLE, "")
        return int(number) if number.isdecimal() else None

    @property
    def cause(self) -> str:
        """The causes of the restarts since the last progress, as sentences, or ""."""
        return self._start.environment.get(_CAUSE_VARIABLE, "")

    def discount(self) -> None:
        """Takes back the count of the last restart."""
        self._number = max(0, self._number - 1)

    def finish_saving(self) -> None:
        """Waits for a checkpoint that is being written, for some time."""
        if not self._is_saving():
            return
        seconds, end = f"{_SAVE_SECONDS:.0f} s", time.monotonic() + _SAVE_SECONDS
        self._log(f"Waiting for the checkpoint being written, {seconds} at most.")
        while self._is_saving():
            if time.monotonic() >= end:
                self._log(f"This checkpoint is given up after {seconds}.")
                return
            time.sleep(_POLL_SECONDS)

    def again(
        self,
        client: int | None,
        cause: str,
        stop: Callable[[], None] = lambda: None,
        **variables: str,
    ) -> NoReturn:
        """Counts a restart, and restarts this process.

        `client` is the number by which workers know it, and `cause` is sentences.
        `stop` is called last. It ends the process if a termination signal has come.
        """
        progress = self.progress()
        # A loss that is not counted is a cause all the same.
        before = self.cause if progress == self._reached else ""
        changes = {
            _RESTARTS_VARIABLE: f"{self.in_a_row + 1} {progress}",
            _CLIENT_VARIABLE: "" if client is None else str(client),
            _CAUSE_VARIABLE: f"{before} {cause}".strip()[:_MAX_CAUSE],
        }
        self._start.again(stop, **changes, **variables)


def progress_of(job: str, logdir: str) -> str:
    """Returns a text that changes whenever a job has written more to `logdir`."""
    if job not in _PROGRESS_FILES:
        return ""
    folder, pattern = _PROGRESS_FILES[job]
    files = sorted(Path(logdir, folder).glob(pattern))
    size = 0
    for path in files:
        with contextlib.suppress(OSError):  # It was deleted meanwhile.
            size += path.stat().st_size
    return f"{files[-1].name if files else 'nothing'} {len(files)} {size}"


def set_death_signal(number: int) -> None:
    """Sets the signal that the calling thread gets when the parent process dies.

    Raises:
        OSError: if the system refuses it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def _death_signal() -> int:
    number = ctypes.c_int(0)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value
