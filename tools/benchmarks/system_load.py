"""Measurements by counters of the kernel: other programs' load, and sent bytes."""

import os
import time
from collections.abc import Collection
from pathlib import Path

# The columns of /proc/stat without idle time: user, nice, system, irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)
# The network of this process, which may be a sandbox's own.
_INTERFACES = Path("/proc/self/net/dev")
_SENT = 8  # The column of bytes sent, after the interface's name.


class OtherPrograms:
    """A context manager that measures the load of other programs on some cores.

    This process and the processes with ids `helpers` do not count.
    """

    def __init__(self, cores: Collection[int], helpers: Collection[int] = ()):
        self._names = {f"cpu{core}" for core in cores}
        self._helpers = helpers
        self._seconds = self._other_seconds = 0.0

    def __enter__(self) -> None:
        self._seconds -= time.perf_counter()
        self._other_seconds -= self._others_so_far()

    def __exit__(self, *_: object) -> None:
        self._other_seconds += self._others_so_far()
        self._seconds += time.perf_counter()

    def num_cores(self) -> float:
        """Returns the mean number of cores that other programs kept busy."""
        # The kernel counts in ticks, so an idle core may come out just below 0.
        return max(0.0, self._other_seconds / self._seconds) if self._seconds else 0.0

    def _others_so_far(self) -> float:
        """Returns the core seconds that other programs have used so far."""
        with open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file]
        ticks = sum(int(row[i]) for row in rows if row[0] in self._names for i in _BUSY)
        # Seconds of a process's threads, by clock_getcpuclockid(3).
        helpers = (time.clock_gettime((~pid << 3) | 2) for pid in self._helpers)
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time() - sum(helpers)


def loopback_bytes() -> int:
    """Returns all bytes sent over the loopback interface so far, with headers."""
    for line in _INTERFACES.read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[_SENT])
    return 0
