"""Heartbeats of workers: a thread asks each one repeatedly. Pure."""

import threading
import time
from collections.abc import Callable

from lingvo_pipe.fault_tolerance.worker_status import WorkerQuestions

_MAX_PERIOD = 1.0
# Maximum seconds until a started worker answers on a busy machine.
_START_SECONDS = 120.0


class WorkerHeartbeat:
    """The heartbeat of a worker.

    Once it is up, the worker must answer within `timeout` seconds.
    """

    def __init__(
        self,
        questions: WorkerQuestions,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions, self._timeout, self._clock = questions, timeout, clock
        self._process, self.was_up = 0, False
        self.restarted()

    def restarted(self) -> None:
        """Records that the worker has been restarted."""
        self._process += 1
        self._is_up = self._is_silent = False
        self._started = self._clock()

    def is_hung(self) -> bool:
        """Returns True if the worker no longer answers, or has never answered."""
        if self._is_up:
            return self._is_silent
        return self._clock() - self._started > max(_START_SECONDS, self._timeout)

    def ask(self) -> None:
        """Asks once, and waits for the answer.

        Ignores the answer of a process that has been restarted since.
        """
        asked = self._process
        (answer,) = self._questions.ask(self._timeout)
        if asked == self._process and not answer.is_gone:
            self._is_silent = answer.identity is None
            if not self._is_silent:
                self._is_up = self.was_up = True

    def watch(self) -> None:
        """Starts a thread that asks repeatedly."""

        def repeat() -> None:
            while True:
                self.ask()
                time.sleep(min(_MAX_PERIOD, self._timeout / 4))

        threading.Thread(target=repeat, daemon=True).start()
