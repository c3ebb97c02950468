"""The policy of an elastic job: when it goes on without workers, and with more again.

a worker is lost --> restart --> wait for it --> go on with the devices that are left
                                                    |
restart with it <-- the next checkpoint <-- a worker is back
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping

from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers


class ElasticWorkers:
    """A policy for workers that are lost, and for workers that come back.

    Args:
        lost_seconds: seconds to wait for a worker before the job goes on without it.
        grow_seconds: seconds after the job's start before workers may be added.
        left_out: what the job has gone on without so far.
        progress: returns a text that changes with each checkpoint.

    Attributes:
        left_out: what the job goes on without.
        lack: why the job cannot go on without the absent workers, or "".
    """

    def __init__(
        self,
        lost_seconds: float,
        grow_seconds: float,
        left_out: LeftOut,
        progress: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost_seconds, self._grow_seconds = lost_seconds, grow_seconds
        self.left_out, self._progress, self._clock = left_out, progress, clock
        self.lack = ""
        self._lack_without: Callable[[Collection[int]], str] = lambda absent: ""
        self._begin = clock()
        self._seen: str | None = None  # The progress when a worker came back.

    def require(self, lack_without: Callable[[Collection[int]], str]) -> None:
        """Sets the function that tells why the job needs one of some workers, or ""."""
        self._lack_without = lack_without

    def goes_on(
        self, workers: LostWorkers, absent: Mapping[int, str], waited: float
    ) -> bool:
        """Returns whether the job goes on without the absent workers.

        If so, `workers` no longer searches for them. Of workers that do not reach each
        other, the first one stays. `waited` is the time in seconds since the start.
        """
        leave = set(absent)
        if workers.all_answered and len(leave) > 1:
            leave.remove(min(leave))
        if waited < self.lost_seconds and not leave <= set(self.left_out.workers):
            return False
        self.lack = self._lack_without(leave)
        if self.lack:
            return False
        workers.leave_out(leave)
        return True

    def begin(self, workers: LostWorkers) -> None:
        """Notes the start of the job, which uses all workers but those left out."""
        self._begin, left_out = self._clock(), tuple(sorted(workers.left_out))
        self.left_out = dataclasses.replace(self.left_out, workers=left_out)

    def added(self, workers: LostWorkers) -> list[str]:
        """Returns the names of the workers with which the job must restart now.

        These are workers that are back, once there is a checkpoint since they were
        first seen, and `grow_seconds` have passed since the job's start.
        """
        if self._clock() - self._begin < self._grow_seconds:
            return []
        back, progress = workers.back(), self._progress()
        if not back or self._seen is None:
            self._seen = progress if back else None
            return []
        return back if progress != self._seen else []
