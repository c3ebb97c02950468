"""An elastic job leaves out a worker that it loses again, or ends if it needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from tensorflow.python.eager import context

from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.fault_tolerance import worker_watch
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.restarts import MAX_IN_A_ROW, ProcessStart, Restarts
from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch
from tests.fault_tolerance.elastic_jobs import Job, Workers


class Ended(BaseException):
    """Raised where a process would end, with its exit code or the next environment."""


class Start(ProcessStart):
    """A process that does not start again."""

    def again(self, stop: Callable[[], None], **changes: str) -> NoReturn:
        raise Ended(changes)


def _end_with_worker_1(environment: dict[str, str]) -> Any:
    """Runs a process that loses worker:1, which it needs. Returns how it ends."""
    job, workers = Job(LeftOut.read(environment)), Workers()
    job.max_absent = 0
    restarts = Restarts(Start((), "", environment), lambda: job.progress)
    watch = WorkerWatch(workers, 30.0, 0.0, restarts, True, print, job.policy)
    watch.begin()
    workers.losses, workers.ended_alone = lambda: ["worker:1 is gone."], [1]
    with pytest.raises(Ended) as ended, watch.surviving():
        raise ValueError
    return ended.value.args[0]


def test_a_worker_that_is_lost_again_is_left_out_until_there_is_progress() -> None:
    """Else a worker that dies whenever it is used would end the job."""
    first, workers = Job(), Workers()
    first.policy.lose([1])
    second = Job(first.policy.left_out)
    assert second.policy.absent(workers) == {}
    second.policy.lose([2])
    second.policy.lose([1])
    third = Job(second.policy.left_out)
    absent = third.policy.absent(workers)
    assert list(absent) == [1]
    assert third.policy.goes_on(workers, absent, 99.0)
    # The job cannot do without three.
    assert list(third.policy.absent(Workers(2, 3))) == [2, 3]
    third.misfits = {2: "old", 3: "old"}
    assert list(third.policy.absent(workers)) == [2, 3]
    third.progress, third.misfits = "b", {}
    assert third.policy.absent(workers) == {}
    third.policy.lose([1])
    assert third.policy.absent(workers) == {}


def test_a_worker_that_is_lost_again_is_not_waited_for() -> None:
    policy, workers = Job(LeftOut(lost=(1, 1), lost_at="a")).policy, Workers(1)
    absent = policy.absent(workers)
    assert absent == {1: "worker:1"}
    assert policy.goes_on(workers, absent, 99.0)


def test_a_worker_that_was_lost_once_and_then_is_leaving_is_not_lost_again() -> None:
    left_out = LeftOut(workers=(1,), lost=(1,), lost_at="a")
    assert Job(left_out).policy.absent(Workers()) == {}


def test_losses_of_a_worker_that_is_needed_end_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it restarted for ever: the policy discounted what it could not leave out."""

    def leave(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(context, "_KEEP_ALIVE_SECS", context._KEEP_ALIVE_SECS)
    monkeypatch.setattr(worker_watch.os, "_exit", leave)
    environment: dict[str, str] = {}
    for _ in range(MAX_IN_A_ROW):
        environment = _end_with_worker_1(environment)
    assert LeftOut.read(environment).workers == ()
    code = _end_with_worker_1(environment)
    assert code == UserClusterError.exit_code
