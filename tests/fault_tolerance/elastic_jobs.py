"""The policy of an elastic job, and workers, without processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers


class Workers(LostWorkers):
    """Four workers, some of which do not answer, or are back."""

    def __init__(self, *silent: int) -> None:
        self._silent, self.left_out = silent, frozenset()
        self.client = lambda: None
        self.losses: Callable[[], list[str]] = list
        self.numbers_back: list[int] = []
        self.probed: list[int] = []
        self.cut: list[tuple[int, int]] = []
        self.cut_off: dict[int, str] = {}

    @property
    def answering(self) -> list[int]:
        return [i for i in range(4) if i not in self._silent]

    def silent(self) -> dict[int, str]:
        return {i: self.name(i) for i in self._silent}

    def name(self, task: int) -> str:
        return f"worker:{task}"

    def cut_pairs(self, tasks: Sequence[int]) -> list[tuple[int, int]]:
        return [pair for pair in self.cut if {*pair} <= {*tasks}]

    def leave_out(self, tasks: Collection[int]) -> None:
        self.left_out = frozenset(tasks)

    def back(self, skipped: Collection[int] = ()) -> dict[int, str]:
        probed = [task for task in self.numbers_back if task not in skipped]
        self.probed += probed
        return {task: self.cut_off.get(task, "") for task in probed}

    def lost(self) -> list[str]:
        return self.losses()


class Job:
    """A policy with needs, a clock and progress of its own."""

    def __init__(self, left_out: LeftOut = LeftOut()) -> None:  # noqa: B008  Frozen.
        self.now, self.progress, self.can_gain = 0.0, "a", True
        self.misfits: dict[int, str] = {}
        self.leaving: set[int] = set()
        self.spare: set[int] = set()
        self.max_absent = 2
        self.logged: list[str] = []
        self.policy = ElasticWorkers(
            *(5.0, 60.0, left_out, lambda: self.progress),
            *(self.logged.append, lambda: self.now),
        )
        self.policy.needs = self

    def misfit(self, task: int) -> str:
        return self.misfits.get(task, "")

    def is_leaving(self, task: int) -> bool:
        return task in self.leaving

    def lack(self, absent: Collection[int]) -> str:
        return f"{len(absent)} are too many" * (len(absent) > self.max_absent)

    def is_complete(self, absent: Collection[int]) -> bool:
        return self.spare.issuperset(absent)

    def gains(self, absent: Collection[int]) -> bool:
        return self.can_gain
