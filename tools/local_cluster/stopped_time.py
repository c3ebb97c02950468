"""For how long a process has been stopped."""

from __future__ import annotations

import time
from collections.abc import Callable


class StoppedTime:
    """The time for which a process was seen to be stopped, without a break.

    Only what was looked at counts: if the looks themselves paused, for the machine
    slept, that is no time.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds, self._last = 0.0, clock()

    def look(self, is_stopped: bool, longest: float = 1.0) -> float:
        """Notes what is seen now; returns the time in seconds.

        Args:
            is_stopped: whether it is stopped.
            longest: seconds that count for one look, at most.
        """
        now = self._clock()
        passed, self._last = min(now - self._last, longest), now
        self._seconds = self._seconds + passed if is_stopped else 0.0
        return self._seconds
