"""Processes of a local cluster: how they are started, asked and ended."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from lingvo_pipe.fault_tolerance.worker_status import WorkerQuestions
from lingvo_pipe.tools.bound_process import bound_python

# Seconds to wait for a process's last lines. Another process may hold its output open.
_FORWARD_SECONDS = 5.0
_MAX_PERIOD = 1.0  # Seconds between two questions to a worker.
# Maximum seconds until a started worker answers on a busy machine.
_START_SECONDS = 120.0


class Member:
    """A Python process of the cluster. Each line of its output begins with its name.

    The process runs on `cores`, or on all cores if `cores` is empty.
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
        """Starts the process. Call this in the main thread, with which it ends."""
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
        """Kills the process if it runs, and waits for the rest of its output."""
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


class Worker(Member):
    """A worker process. If it does not answer for `timeout` seconds, it is hung."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        cores: Sequence[int],
        questions: WorkerQuestions,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, arguments, cores)
        self._questions, self._timeout, self._clock = questions, timeout, clock
        self._num_starts, self.was_up = 0, False

    def start(self) -> None:
        """Starts the process, which counts as not yet up until its first answer."""
        super().start()
        self._num_starts += 1
        self._is_up = self._is_silent = False
        self._started = self._clock()

    def is_hung(self) -> bool:
        """Returns True if the worker stopped answering, or takes too long to start."""
        if self._is_up:
            return self._is_silent
        return self._clock() - self._started > max(_START_SECONDS, self._timeout)

    def ask(self) -> None:
        """Asks the worker whether it is up, and records the answer.

        Ignores an answer if the process has been restarted in the meantime.
        """
        asked = self._num_starts
        (answer,) = self._questions.ask(self._timeout)
        if asked == self._num_starts and not answer.is_gone:
            self._is_silent = answer.identity is None
            if not self._is_silent:
                self._is_up = self.was_up = True

    def watch(self) -> None:
        """Starts a thread that asks the worker repeatedly whether it is up."""

        def repeat() -> None:
            while True:
                self.ask()
                time.sleep(min(_MAX_PERIOD, self._timeout / 4))

        threading.Thread(target=repeat, daemon=True).start()
