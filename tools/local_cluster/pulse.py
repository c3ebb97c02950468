"""Whether a worker answers, asked over and over on a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lingvo_pipe.failures.worker_answers import Questions

_EVERY = 1.0
# Seconds in which a worker that was started answers, on a machine that is busy.
_TO_START = 120.0


class Pulse:
    """What is known of a worker that may hang.

    Args:
        questions: to the worker.
        timeout: seconds in which it answers, once it has come up.
        clock: in seconds.
    """

    def __init__(
        self,
        questions: Questions,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions, self._timeout, self._clock = questions, timeout, clock
        self._is_up = self._is_silent = self._was_up = False
        self._process, self._started = 0, clock()

    def restarted(self) -> None:
        """Tells that the worker is another process now."""
        self._process += 1
        self._is_up = self._is_silent = False
        self._started = self._clock()

    def was_up(self) -> bool:
        """Whether any of its processes has answered."""
        return self._was_up

    def is_hung(self) -> bool:
        """Whether it has stopped to answer, or does not begin to."""
        if self._is_up:
            return self._is_silent
        return self._clock() - self._started > max(_TO_START, self._timeout)

    def ask(self) -> None:
        """Asks once, and waits for the answer."""
        asked = self._process
        (answer,) = self._questions.ask(self._timeout)
        if asked != self._process:
            return  # Another process was asked.
        if answer.identity is not None:
            self._is_up = self._was_up = True
            self._is_silent = False
        elif not answer.is_gone:
            self._is_silent = True

    def watch(self) -> None:
        """Asks from now on."""
        threading.Thread(target=self._ask_on, daemon=True).start()

    def _ask_on(self) -> None:
        while True:
            self.ask()
            time.sleep(min(_EVERY, self._timeout / 4))
