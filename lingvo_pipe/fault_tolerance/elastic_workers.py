"""The policy of an elastic job: when it continues without workers, and with more again.

a worker is lost --> restart --> wait for it --> continue on the devices that are left
                                                    |
restart with it <-- the next checkpoint <-- a worker is back
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Protocol

from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers

# After this many consecutive looks without a worker that is back, the next such worker
# waits for another checkpoint. Fewer such looks may only be late answers.
_MAX_MISSES = 3


class Needs(Protocol):
    """An elastic job's needs of its workers."""

    def misfit(self, task: int) -> str:
        """Returns why the job cannot use a worker that answers, or ""."""

    def is_leaving(self, task: int) -> bool:
        """Returns whether a worker that answers is leaving."""

    def lack(self, absent: Collection[int]) -> str:
        """Returns why the job cannot continue without the absent workers, or ""."""

    def is_complete(self, absent: Collection[int]) -> bool:
        """Returns whether the job has all its devices without the absent workers."""

    def gains(self, absent: Collection[int]) -> bool:
        """Returns whether a restart would give the job more devices than it has.

        The restart leaves out only the absent workers.
        """


class ElasticWorkers:
    """A policy for workers that are lost, and for workers that come back.

    Args:
        lost_seconds: seconds to wait for a worker before the job continues without it.
        grow_seconds: seconds after the job's start before workers may be added. For as
            long, a worker that does not reach others is not probed again.
        progress: returns a text that changes with each checkpoint.

    Attributes:
        needs: the job's needs. The job sets them.
        left_out: the workers and devices that the job leaves out.
        lack: why the job cannot continue without the absent workers, or "".
        wait: seconds until the job continues without the absent workers.
    """

    needs: Needs

    def __init__(
        self,
        lost_seconds: float,
        grow_seconds: float,
        left_out: LeftOut,
        progress: Callable[[], str],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost_seconds, self._grow_seconds = lost_seconds, grow_seconds
        self.left_out, self._progress, self._clock = left_out, progress, clock
        self.lack, self.wait, self._log = "", 0.0, log
        self._begin = clock()
        self._since: dict[int, float] = {}  # When each absent worker became absent.
        self._seen: str | None = None  # The progress when a worker came back.
        self._misses = 0  # Consecutive looks in which no worker was back.
        self._problems: dict[int, str] = {}  # Of workers that are back.
        self._pauses: dict[int, float] = {}  # When each pause between probes ends.
        self._logged: set[str] = set()

    def absent(self, workers: LostWorkers) -> dict[int, str]:
        """Returns texts about the workers without which a job would run, by number.

        These workers do not answer, are leaving or do not fit the job, or they are the
        fewest without which all workers reach each other. Workers that were lost again
        are absent until there is progress, if the job can continue without them.
        """
        texts = workers.silent()
        for task in workers.answering:
            if self.needs.is_leaving(task):
                self.leave_out([task])
                texts[task] = f"{workers.name(task)}, which is leaving"
            elif misfit := self.needs.misfit(task):
                texts[task] = f"{workers.name(task)}, which does not fit: {misfit}"
        again = sorted(self._lost_again().difference(texts))
        if again and not self.needs.lack([*texts, *again]):
            for task in again:
                texts[task] = f"{workers.name(task)}, which was lost again"
        usable = [task for task in workers.answering if task not in texts]
        for task in fewest_to_leave_out(workers.cut_pairs(usable)):
            texts[task] = f"{workers.name(task)}, which does not reach another worker"
        return texts

    def goes_on(
        self, workers: LostWorkers, absent: Collection[int], left: float
    ) -> bool:
        """Returns whether the job continues without the absent workers.

        If so, `workers` no longer searches for them. Each worker has `lost_seconds`
        since it became absent, but at most `left` seconds from now. The job does not
        wait for a worker that was lost again, or if it has all its devices.
        """
        now, gone = self._clock(), {*self.left_out.workers, *self._lost_again()}
        self._since = {task: self._since.get(task, now) for task in absent}
        waiting = [t for i, t in self._since.items() if i not in gone]
        last = max(waiting, default=None)
        is_complete = last is not None and self.needs.is_complete(absent)
        if last is None or is_complete:
            self.wait = 0.0
        else:
            self.wait = min(last + self.lost_seconds - now, left)
        # A complete job lacks nothing. Each question asks all workers.
        self.lack = "" if self.wait > 0 or is_complete else self.needs.lack(absent)
        if self.wait > 0 or self.lack:
            return False
        workers.leave_out(absent)
        return True

    def begin(self, workers: LostWorkers) -> bool:
        """Records the job's start. Returns whether it leaves out more workers now."""
        number = len(self.left_out.workers)
        self._begin, left_out = self._clock(), tuple(sorted(workers.left_out))
        self.left_out = dataclasses.replace(self.left_out, workers=left_out)
        return len(left_out) > number

    def leave_out(self, tasks: Collection[int]) -> None:
        """Leaves out workers that are leaving, and does not wait for them."""
        workers = tuple(sorted({*self.left_out.workers, *tasks}))
        self.left_out = dataclasses.replace(self.left_out, workers=workers)

    def lose(self, tasks: Collection[int]) -> None:
        """Counts a loss of these workers, so `absent` knows which are lost again."""
        left_out, progress = self.left_out, self._progress()
        before = left_out.lost if left_out.lost_at == progress else ()
        lost = (*before, *tasks)
        self.left_out = dataclasses.replace(left_out, lost=lost, lost_at=progress)

    def added(self, workers: LostWorkers) -> list[str]:
        """Returns the names of the workers with which the job must restart now.

        These are workers that are back and fit, once there is a checkpoint since they
        were first seen, and `grow_seconds` have passed since the job's start.
        """
        if self._clock() - self._begin < self._grow_seconds:
            return []
        back, progress = self._fitting(workers), self._progress()
        self._misses = 0 if back else self._misses + 1
        if self._misses >= _MAX_MISSES:
            self._seen = None
        if back and self._seen is None:
            self._seen = progress
        if not back or progress == self._seen:
            return []
        if not self.needs.gains(workers.left_out.difference(back)):
            return []
        return [workers.name(task) for task in back]

    def _fitting(self, workers: LostWorkers) -> list[int]:
        """Returns the workers that are back and fit. Logs once why others do not.

        A worker that has just started may not describe itself yet, so its problem is
        logged when it is seen for the second time.
        """
        now, before = self._clock(), self._problems
        # Each probe without an answer leaves a thread in both workers.
        problems = {
            task: before[task] for task, end in self._pauses.items() if now < end
        }
        for task, cut_off in workers.back(problems).items():
            if self.needs.is_leaving(task):
                continue
            if cut_off:
                self._pauses[task] = now + self._grow_seconds
            problems[task] = cut_off or self._misfit(task)
        for task, problem in problems.items():
            line = f"{workers.name(task)} is back, but {problem}."
            is_known = before.get(task) == problem
            if problem and is_known and line not in self._logged:
                self._logged.add(line)
                self._log(line)
        self._problems = problems
        return [task for task, problem in problems.items() if not problem]

    def _lost_again(self) -> set[int]:
        """Returns the workers that were lost more than once without progress since."""
        lost, lost_at = self.left_out.lost, self.left_out.lost_at
        again = {task for task in lost if lost.count(task) > 1}
        return again if lost_at == self._progress() else set()

    def _misfit(self, task: int) -> str:
        misfit = self.needs.misfit(task)
        return misfit and f"does not fit: {misfit}"


def fewest_to_leave_out(pairs: Sequence[tuple[int, int]]) -> set[int]:
    """Returns a small set that has one worker of each pair, or both.

    Repeatedly takes the worker that is in the most remaining pairs. So if no other
    worker reaches a worker, only that one is left out. Of two workers that do not reach
    each other, the one with the higher number is left out.
    """
    chosen: set[int] = set()
    left = set(map(frozenset, pairs))
    while left:
        degrees = Counter(chain.from_iterable(left))
        worker = max(degrees, key=lambda task: (degrees[task], task))
        chosen.add(worker)
        left = {pair for pair in left if worker not in pair}
    return chosen
