"""Heartbeats of workers: a thread asks each one repeatedly. Pure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lingvo_pipe.fault_tolerance.worker_status import WorkerQuestions

_MAX_PERIOD = 1.0
# Maximum seconds until a started worker answers on a busy machine.
_START_SECONDS = 120.0


class WorkerHeartbeat:
    """The heartbeat of a worker that may hang.

    Args:
        questions: questions to the worker.
        timeout: maximum seconds for an answer, once the worker is up.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        questions: WorkerQuestions,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions, self._timeout, self._clock = questions, timeout, clock
        self._is_up = self._is_silent = self._was_up = False
        self._process, self._started = 0, clock()

    def restarted(self) -> None:
        """Records that the worker has been restarted."""
        self._process += 1
        self._is_up = self._is_silent = False
        self._started = self._clock()

    def was_up(self) -> bool:
        """Returns True if any of its processes has answered."""
        return self._was_up

    def is_hung(self) -> bool:
        """Returns True if it no longer answers, or never started to."""
        if self._is_up:
            return self._is_silent
        return self._clock() - self._started > max(_START_SECONDS, self._timeout)

    def ask(self) -> None:
        """Asks once, and waits for the answer."""
        asked = self._process
        (answer,) = self._questions.ask(self._timeout)
        if asked != self._process:
            return  # The worker was restarted.
        if answer.identity is not None:
            self._is_up = self._was_up = True
            self._is_silent = False
        elif not answer.is_gone:
            self._is_silent = True

    def watch(self) -> None:
        """Starts a thread that asks from now on."""
        threading.Thread(target=self._repeat, daemon=True).start()

    def _repeat(self) -> None:
        while True:
            self.ask()
            time.sleep(min(_MAX_PERIOD, self._timeout / 4))
