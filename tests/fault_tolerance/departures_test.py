"""A run saves a checkpoint for workers that are leaving, and then lets them go."""

from __future__ import annotations

from collections.abc import Collection

from lingvo_pipe.fault_tolerance.departures import Departures


class Job:
    """A job of four workers, which are used until they are let go."""

    def __init__(self) -> None:
        self.leaving: set[int] = set()
        self.used: set[int] = set()
        self.has_saved, self.asked = False, 0
        self.logged: list[int] = []
        self.departures = Departures(self, self._save, self.logged.append)

    def look(self) -> set[int]:
        return self.departures.look(range(4))

    def renew(self, tasks: Collection[int]) -> set[int]:
        self.used |= {*tasks}
        return self.leaving & {*tasks}

    def end(self, tasks: Collection[int]) -> None:
        self.used -= {*tasks}

    def _save(self) -> bool:
        self.asked += 1
        return self.has_saved


def test_a_job_whose_workers_stay_saves_nothing() -> None:
    job = Job()
    assert job.look() == set()
    assert (job.asked, job.used) == (0, {0, 1, 2, 3})
    assert not job.departures.are_pending


def test_workers_are_let_go_once_a_checkpoint_is_written() -> None:
    job = Job()
    job.leaving = {1}
    assert job.look() == set()
    assert job.departures.are_pending
    job.leaving |= {3}
    assert job.look() == set()
    assert job.logged == [1, 3]
    job.has_saved = True
    assert job.look() == {1, 3}
    assert (job.logged, job.used, job.asked) == ([1, 3], {0, 2}, 3)


def test_workers_are_let_go_at_once_if_nothing_is_unsaved() -> None:
    job = Job()
    job.has_saved, job.leaving = True, {2}
    assert job.look() == {2}
