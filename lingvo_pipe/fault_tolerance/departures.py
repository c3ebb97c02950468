"""Workers that are leaving: the run saves a checkpoint before it lets them go."""

from collections.abc import Callable, Collection
from typing import Protocol


class Use(Protocol):
    """A trainer's use of workers (see `WorkerUse`)."""

    def renew(self, tasks: Collection[int]) -> set[int]:
        """Tells workers that they are used. Returns those that are leaving."""

    def end(self, tasks: Collection[int]) -> None:
        """Tells workers that they are no longer used."""


class Departures:
    """A watch over workers that announce that they are leaving.

    `save` asks the run for a checkpoint, and returns whether all steps are saved.
    `are_pending` is True while leaving workers wait for this checkpoint.
    """

    def __init__(
        self, use: Use, save: Callable[[], bool], log: Callable[[int], None]
    ) -> None:
        self.use, self._save, self._log = use, save, log
        self._leaving: set[int] = set()
        self.are_pending = False

    def look(self, tasks: Collection[int]) -> set[int]:
        """Tells workers that they are used. Returns those that may leave now.

        If any may leave, the process must restart, because the run waits for that.
        """
        leaving = self.use.renew(tasks)
        for task in sorted(leaving - self._leaving):
            self._log(task)
        self._leaving |= leaving
        self.are_pending = bool(leaving) and not self._save()
        if self.are_pending:
            return set()
        self.use.end(leaving)
        return leaving
