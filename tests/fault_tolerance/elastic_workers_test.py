"""An elastic job goes on without lost workers, and with those that are back."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import pytest
from tensorflow.python.eager import context

from lingvo_pipe.fault_tolerance.elastic_workers import fewest_to_leave_out
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import LostWorkers
from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch
from tests.fault_tolerance.elastic_jobs import Job, Workers

PATIENCE = 300.0  # Seconds, on a busy machine.


class FakeRestarts:
    """Restarts that end the thread."""

    in_a_row, client_before = 1, None

    def __init__(self) -> None:
        self.is_counted, self.left_out = True, LeftOut()
        self.has_restarted = threading.Event()

    def finish_saving(self) -> None:
        pass

    def discount(self) -> None:
        self.is_counted = False

    def again(
        self, client: None, cause: str, stop: Callable[[], None], **variables: str
    ) -> NoReturn:
        self.left_out = LeftOut.read(variables)
        self.has_restarted.set()
        raise SystemExit


def test_a_worker_that_is_leaving_is_not_waited_for() -> None:
    job, workers = Job(LeftOut(workers=(1,))), Workers(1)
    job.leaving = {2}
    absent = job.policy.absent(workers)
    assert absent == {1: "worker:1", 2: "worker:2, which is leaving"}
    assert job.policy.goes_on(workers, absent, 99.0)
    assert workers.left_out == {1, 2}
    workers.numbers_back = [2]
    job.now = 99.0
    assert job.policy.added(workers) == []
    job.progress = "b"
    assert job.policy.added(workers) == []


def test_a_lost_worker_has_time_to_come_back() -> None:
    job, workers = Job(), Workers(1, 2)
    policy = job.policy
    absent = policy.absent(workers)
    assert absent == {1: "worker:1", 2: "worker:2"}
    assert not policy.goes_on(workers, absent, 99.0)
    job.now = 4.0
    assert not policy.goes_on(workers, absent, 99.0)
    assert policy.wait == 1.0
    assert workers.left_out == set()
    job.now = 5.0
    assert policy.goes_on(workers, absent, 99.0)
    assert workers.left_out == {1, 2}
    assert policy.begin(workers)
    assert policy.left_out.workers == (1, 2)
    assert not policy.begin(workers)


def test_each_lost_worker_has_its_own_time() -> None:
    """A late answer after a long wait for others is no loss, unless the wait ends."""
    job, workers = Job(), Workers()
    assert not job.policy.goes_on(workers, {1}, 99.0)
    job.now = 9.0
    assert not job.policy.goes_on(workers, {1, 2}, 99.0)
    assert job.policy.wait == 5.0
    assert job.policy.goes_on(workers, {1}, 99.0)
    job.now = 15.0
    assert not job.policy.goes_on(workers, {2}, 99.0)
    assert job.policy.goes_on(workers, {2}, -1.0)


def test_a_worker_that_was_left_out_is_not_waited_for_again() -> None:
    policy, workers = Job(LeftOut(workers=(1, 2))).policy, Workers()
    assert policy.goes_on(workers, {1, 2}, 99.0)
    assert not policy.goes_on(workers, {0, 1, 2}, 99.0)


def test_a_job_waits_for_no_worker_that_it_does_not_need() -> None:
    job, workers = Job(), Workers()
    job.spare = {3}
    assert job.policy.goes_on(workers, {3}, 99.0)
    assert not job.policy.goes_on(workers, {2, 3}, 99.0)


# The thread ends in place of a restart.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_slow_look_for_workers_that_are_back_hides_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the loss of a worker that a job goes on without is not counted."""
    monkeypatch.setattr(context, "_KEEP_ALIVE_SECS", context._KEEP_ALIVE_SECS)
    looks, is_over = threading.Event(), threading.Event()

    def added(workers: LostWorkers) -> list[str]:
        looks.set()
        is_over.wait(PATIENCE)
        return []

    job, workers = Job(LeftOut(lost=(1, 1), lost_at="a")), Workers()
    job.policy.added = added  # type: ignore[method-assign]
    workers.losses = lambda: ["worker:2 is gone."] if looks.is_set() else []
    workers.ended_alone = [2]
    restarts: Any = FakeRestarts()
    watch = WorkerWatch(workers, 1.0, 0.0, restarts, True, print, job.policy)
    with watch.surviving():
        watch.begin()
        has_restarted = restarts.has_restarted.wait(PATIENCE)
        is_over.set()
    assert has_restarted
    assert restarts.left_out.workers == (1,)
    assert restarts.left_out.lost == (1, 1, 2)
    assert not restarts.is_counted


def test_a_job_that_lacks_devices_waits() -> None:
    policy, workers = Job().policy, Workers()
    assert not policy.goes_on(workers, {0, 1, 2}, 0.0)
    assert policy.lack == "3 are too many"
    assert not policy.goes_on(workers, {2}, 99.0)
    assert policy.lack == ""
    assert policy.goes_on(workers, {2}, 0.0)


def test_a_signal_that_comes_while_devices_are_counted_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack(self: Job, absent: Collection[int]) -> str:
        signal.raise_signal(signal.SIGTERM)
        return ""

    monkeypatch.setattr(Job, "lack", lack)
    restarts: Any = None
    watch = WorkerWatch(Workers(1), 1.0, 0.0, restarts, True, print, Job().policy)
    with pytest.raises(SystemExit) as ended:
        watch.begin()
    assert ended.value.code == 128 + signal.SIGTERM


def test_a_worker_that_does_not_fit_is_absent() -> None:
    job, workers = Job(), Workers(0)
    job.misfits = {0: "unknown", 2: "GPU before, CPU now"}
    absent = job.policy.absent(workers)
    assert list(absent) == [0, 2]
    assert absent[2].startswith("worker:2, ")
    assert absent[2].endswith(": GPU before, CPU now")


def test_of_workers_that_do_not_reach_each_other_the_fewest_are_left_out() -> None:
    job, workers = Job(), Workers()
    workers.cut = [(0, 1), (1, 0), (0, 2), (0, 3)]
    assert list(job.policy.absent(workers)) == [0]
    workers.cut = [(1, 2), (2, 1)]
    assert list(job.policy.absent(workers)) == [2]
    job.misfits = {2: "old"}
    assert list(job.policy.absent(workers)) == [2]


@pytest.mark.parametrize("seed", range(50))
def test_of_up_to_four_workers_the_fewest_are_left_out(seed: int) -> None:
    draw, number = random.Random(seed), 2 + seed % 3
    pairs = [x for x in itertools.permutations(range(number), 2) if draw.random() < 0.3]
    left_out = fewest_to_leave_out(pairs)
    sets = itertools.combinations(range(number), max(len(left_out) - 1, 0))
    assert not any(left_out.isdisjoint(pair) for pair in pairs)
    assert not left_out or not any(
        all({*few} & {*pair} for pair in pairs) for few in sets
    )


def test_a_network_of_two_halves_keeps_one() -> None:
    halves = [(i, j) for i in range(40) for j in range(40, 80)]
    assert fewest_to_leave_out(halves) == {*range(40, 80)}
    assert fewest_to_leave_out([(i, 7) for i in range(99) if i != 7]) == {7}


def test_workers_that_are_back_join_after_a_checkpoint_but_not_too_often() -> None:
    job, workers = Job(), Workers()
    job.policy.begin(workers)
    workers.numbers_back = [1]
    job.now = 59.0
    assert job.policy.added(workers) == []
    job.now, job.progress = 60.0, "b"
    assert job.policy.added(workers) == []  # It may have come after the checkpoint.
    workers.numbers_back = []
    job.progress = "c"
    for _ in range(3):
        assert job.policy.added(workers) == []
    workers.numbers_back = [1]
    assert job.policy.added(workers) == []
    job.progress = "d"
    workers.numbers_back = []
    assert job.policy.added(workers) == []  # By chance.
    workers.numbers_back = [1]
    assert job.policy.added(workers) == ["worker:1"]
    job.can_gain = False
    assert job.policy.added(workers) == []


def test_a_worker_that_is_back_but_does_not_fit_is_named_once() -> None:
    job, workers = Job(), Workers()
    job.misfits, job.now = {1: "version 2 there, 1 here"}, 99.0
    workers.numbers_back = [1]
    for progress in "abcd":
        job.progress = progress
        assert job.policy.added(workers) == []
    (line,) = job.logged
    assert line.startswith("worker:1 ")
    assert "version 2 there, 1 here" in line
    workers.numbers_back = [1, 2]
    job.policy.added(workers)
    job.progress = "e"
    assert job.policy.added(workers) == ["worker:2"]


def test_a_worker_that_is_back_but_does_not_reach_others_is_named_once() -> None:
    job, workers = Job(), Workers()
    job.now, workers.numbers_back = 99.0, [1]
    workers.cut_off = {1: "it and worker:0 do not reach each other"}
    for progress in "abcd":
        job.progress = progress
        assert job.policy.added(workers) == []
    assert job.logged == [f"worker:1 is back, but {workers.cut_off[1]}."]


def test_a_worker_that_does_not_reach_others_is_rarely_probed() -> None:
    """Each probe without an answer leaves a thread in a worker that is used."""
    job, workers = Job(), Workers()
    workers.numbers_back = [1, 2]
    workers.cut_off = {1: "it and worker:0 do not reach each other"}
    for job.now in (60.0, 65.0, 119.0, 120.0):
        job.policy.added(workers)
    assert workers.probed == [1, 2, 2, 2, 1, 2]


def test_the_next_process_knows_what_is_left_out() -> None:
    devices, kind = {"/job:localhost/x": 2}, {"type": "GPU", "model": "A 7.0"}
    left_out = LeftOut((1,), devices, 3, "it does not fit", kind, (1, 2, 1), "ckpt-3")
    assert LeftOut.read(left_out.variables()) == left_out
    assert LeftOut.read({}) == LeftOut()
