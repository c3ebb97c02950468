"""How much of the machine other programs use: what disturbs a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

# The columns of /proc/stat that are no idling: user, nice, system, irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)


class OtherPrograms:
    """Follows some cores, on which this process does all that it does."""

    def __init__(self, cores: Collection[int]):
        self._names = {f"cpu{core}" for core in cores}
        self._start, self._start_others = time.perf_counter(), self._other_seconds()

    def num_cores(self) -> float:
        """How many of the cores other programs have kept busy since the start."""
        seconds = self._other_seconds() - self._start_others
        # The kernel counts in ticks: nothing can come out a little below 0.
        return max(0.0, seconds / (time.perf_counter() - self._start))

    def _other_seconds(self) -> float:
        with open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file]
        ticks = sum(int(row[i]) for row in rows if row[0] in self._names for i in _BUSY)
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
