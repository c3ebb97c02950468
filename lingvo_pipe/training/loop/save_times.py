"""The times of checkpoints: by steps, by the clock, and on request."""

import threading
import time
from collections.abc import Callable

from lingvo_pipe.hyperparams import Params


class SaveTimes:
    """The times of checkpoints that params of `task.train` ask for."""

    def __init__(
        self, params: Params, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = params.save_interval_steps
        self._seconds = params.save_interval_seconds
        self._clock, self._last = clock, clock()

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after `step` steps."""
        if step % self._steps == 0:
            return True
        return self._seconds is not None and self._clock() - self._last >= self._seconds

    def restart_clock(self) -> None:
        """Counts the seconds from now on, since a checkpoint has been started."""
        self._last = self._clock()


class SaveRequest:
    """A request for a checkpoint after the current step, from another thread."""

    def __init__(self) -> None:
        self._is_asked, self._is_written = threading.Event(), threading.Event()

    def ask(self) -> bool:
        """Asks for a checkpoint. Returns whether it has been written."""
        self._is_asked.set()
        return self._is_written.is_set()

    def is_open(self) -> bool:
        """Returns whether a checkpoint is asked for, and not written."""
        return self._is_asked.is_set() and not self._is_written.is_set()

    def close(self) -> None:
        """Notes that the checkpoint has been written."""
        self._is_written.set()
