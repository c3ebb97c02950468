"""How much of the machine other programs use: what disturbs a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

# The columns of /proc/stat that are no idling: user, nice, system, irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)


class OtherPrograms:
    """Follows some cores while it is entered, as often as it is.

    Args:
        cores: on which this process and `helpers` do all that they do.
        helpers: ids of the processes that work for this one.
    """

    def __init__(self, cores: Collection[int], helpers: Collection[int] = ()):
        self._names = {f"cpu{core}" for core in cores}
        self._helpers = helpers
        self._seconds = self._other_seconds = 0.0

    def __enter__(self) -> None:
        self._seconds -= time.perf_counter()
        self._other_seconds -= self._busy_seconds() - self._own_seconds()

    def __exit__(self, *_: object) -> None:
        self._other_seconds += self._busy_seconds() - self._own_seconds()
        self._seconds += time.perf_counter()

    def num_cores(self) -> float:
        """How many of the cores other programs kept busy meanwhile."""
        # The kernel counts in ticks: nothing can come out a little below 0.
        return max(0.0, self._other_seconds / self._seconds) if self._seconds else 0.0

    def _busy_seconds(self) -> float:
        with open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file]
        ticks = sum(int(row[i]) for row in rows if row[0] in self._names for i in _BUSY)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _own_seconds(self) -> float:
        return time.process_time() + sum(map(_processor_seconds, self._helpers))


def _processor_seconds(pid: int) -> float:
    """Of all threads of a process, by the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)
