"""An elastic job goes on without lost workers, and with those that are back."""

from __future__ import annotations

from collections.abc import Collection

from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers


class Workers(LostWorkers):
    """Three workers, some of which are back."""

    def __init__(self, answered: bool = False) -> None:
        self._answered, self.left_out = answered, frozenset()
        self.names_back: list[str] = []

    @property
    def all_answered(self) -> bool:
        return self._answered

    def leave_out(self, tasks: Collection[int]) -> None:
        self.left_out = frozenset(tasks)

    def back(self) -> list[str]:
        return self.names_back


class Job:
    """A policy with a clock and progress of its own."""

    def __init__(self, left_out: LeftOut = LeftOut()) -> None:  # noqa: B008  Frozen.
        self.now, self.progress = 0.0, "a"
        self.policy = ElasticWorkers(
            5.0, 60.0, left_out, lambda: self.progress, lambda: self.now
        )


ABSENT = {1: "worker:1", 2: "worker:2"}


def test_a_lost_worker_has_time_to_come_back() -> None:
    policy, workers = Job().policy, Workers()
    assert not policy.goes_on(workers, ABSENT, 4.0)
    assert workers.left_out == set()
    assert policy.goes_on(workers, ABSENT, 5.0)
    assert workers.left_out == {1, 2}
    policy.begin(workers)
    assert policy.left_out.workers == (1, 2)


def test_a_worker_that_was_left_out_is_not_waited_for_again() -> None:
    policy, workers = Job(LeftOut(workers=(1, 2))).policy, Workers()
    assert policy.goes_on(workers, ABSENT, 0.0)
    assert not policy.goes_on(workers, {**ABSENT, 0: "worker:0"}, 0.0)


def test_of_workers_that_do_not_reach_each_other_the_first_stays() -> None:
    policy, workers = Job().policy, Workers(answered=True)
    assert policy.goes_on(workers, ABSENT, 5.0)
    assert workers.left_out == {2}
    assert policy.goes_on(workers, {1: "worker:1"}, 5.0)
    assert workers.left_out == {1}


def test_a_job_that_lacks_devices_waits() -> None:
    policy, workers = Job().policy, Workers()
    policy.require(lambda absent: f"{len(absent)} are too many" * (len(absent) > 1))
    assert not policy.goes_on(workers, ABSENT, 9.0)
    assert policy.lack == "2 are too many"
    assert policy.goes_on(workers, {2: "worker:2"}, 9.0)
    assert policy.lack == ""


def test_workers_that_are_back_join_after_a_checkpoint_but_not_too_often() -> None:
    job, workers = Job(), Workers()
    job.policy.begin(workers)
    workers.names_back = ["worker:1"]
    job.now = 59.0
    assert job.policy.added(workers) == []
    job.now, job.progress = 60.0, "b"
    assert job.policy.added(workers) == []  # It may have come after the checkpoint.
    workers.names_back = []
    job.progress = "c"
    assert job.policy.added(workers) == []
    workers.names_back = ["worker:1"]
    assert job.policy.added(workers) == []
    job.progress = "d"
    assert job.policy.added(workers) == ["worker:1"]


def test_the_next_process_knows_what_is_left_out() -> None:
    left_out = LeftOut((1,), ("/job:localhost/x",), 3, "it does not fit")
    assert LeftOut.read(left_out.variables()) == left_out
    assert LeftOut.read({}) == LeftOut()
