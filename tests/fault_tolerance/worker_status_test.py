"""A worker's status follows from its answers, however busy it is."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from lingvo_pipe.fault_tolerance.worker_status import (
    Answer,
    LostWorkers,
    WorkerQuestions,
)
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.support.command_line import CommandLine

# Seconds in which even a busy machine answers, and in which a worker comes up.
TIMEOUT, PATIENCE = 120.0, 300.0
# Keeps every thread of the worker at work for some time; prints the number by which
# the worker knows it.
BUSY = """
import sys, time
import tensorflow as tf
from lingvo_pipe.fault_tolerance.worker_watch import own_client_number
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"worker": [sys.argv[1]], "localhost": ["127.0.0.1:0"]}),
    job_name="localhost", task_index=0)

@tf.function
def work(x):
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        return tf.add_n([tf.reduce_sum(tf.matmul(x + i, x)) for i in range(8)])

with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
    x = tf.zeros([1600, 1600])
work(x)
print(own_client_number(), flush=True)
float(work(x))
print(flush=True)
time.sleep(600)
"""


class Worker:
    """A worker at an address, whose process can be started again."""

    def __init__(self, command_line: CommandLine) -> None:
        self._command_line = command_line
        self.address = f"127.0.0.1:{unused_ports(1)[0]}"
        self.start()

    def start(self) -> None:
        self.process = self._command_line.start(
            "-c",
            "import sys\n"
            "from lingvo_pipe.pipeline.devices.cluster_spec import Cluster\n"
            "from lingvo_pipe.pipeline.devices.worker import serve\n"
            "serve(Cluster((sys.argv[1],)), 0)\n",
            self.address,
        )

    def identity(self) -> bytes:
        """Returns the worker's identity as soon as it is up."""
        questions = WorkerQuestions([self.address])
        end = time.monotonic() + PATIENCE
        while (identity := questions.ask(TIMEOUT)[0].identity) is None:
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.1)
        return identity


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def worker(command_line: CommandLine) -> Iterator[Worker]:
    worker = Worker(command_line)
    yield worker
    worker.process.kill()
    worker.process.communicate()


def has_stopped(pid: int) -> bool:
    """Returns whether all threads of a process have stopped."""
    with contextlib.suppress(FileNotFoundError):  # A thread has just ended.
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return False


def test_answers_tell_the_status_of_a_worker(
    worker: Worker, command_line: CommandLine
) -> None:
    identity = worker.identity()
    questions = WorkerQuestions([worker.address])
    busy = command_line.start("-c", BUSY, worker.address)
    assert busy.stdout is not None
    number = int(busy.stdout.readline())
    assert questions.forgotten(number, TIMEOUT) == [False]
    assert questions.forgotten(number + 1, TIMEOUT) == [True]
    done = threading.Thread(target=busy.stdout.readline)
    done.start()
    while done.is_alive():
        assert questions.ask(TIMEOUT) == [Answer(identity)]
    assert questions.forgotten(number, TIMEOUT) == [False]
    questions.forget(number + 1, TIMEOUT)
    assert questions.forgotten(number, TIMEOUT) == [False]
    busy.kill()
    busy.communicate()
    questions.forget(number, TIMEOUT)
    assert questions.forgotten(number, TIMEOUT) == [True]

    worker.process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + PATIENCE
    while not has_stopped(worker.process.pid):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert questions.ask(1.0) == [Answer()]
    worker.process.send_signal(signal.SIGCONT)
    assert questions.ask(TIMEOUT) == [Answer(identity)]

    worker.process.kill()
    worker.process.communicate()
    assert questions.ask(TIMEOUT) == [Answer(is_gone=True)]
    worker.start()
    assert worker.identity() not in (None, identity)


def test_a_worker_that_never_was_is_gone() -> None:
    address = f"127.0.0.1:{unused_ports(1)[0]}"
    assert WorkerQuestions([address]).ask(TIMEOUT) == [Answer(is_gone=True)]


ADDRESSES = ("a:1", "b:2")
GONE, SILENT = Answer(is_gone=True), Answer()
FIRST, SECOND, OTHER = Answer(b"1"), Answer(b"2"), Answer(b"3")


class Replies(WorkerQuestions):
    """Gives answers one after another, the last of them forever."""

    def __init__(self, *answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.asked: list[float] = []
        self.forgetful = [False, False]
        self.isolated: set[int] = set()
        self.cut: set[tuple[int, int]] = set()

    def reach(
        self, probes: Sequence[tuple[int, Collection[int]]], seconds: float
    ) -> list[bool]:
        return [
            task not in self.isolated and not self.cut & {(task, x) for x in others}
            for task, others in probes
        ]

    def only(self, tasks: Sequence[int]) -> Replies:
        replies = Replies(*([x[i] for i in tasks] for x in self._answers))
        replies.cut = self.cut
        return replies

    def ask(self, seconds: float) -> Sequence[Answer]:
        self.asked.append(seconds)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def forgotten(self, client: int, seconds: float) -> Sequence[bool]:
        assert client == 7
        return self.forgetful

    def forget(self, client: int, seconds: float) -> None:
        assert client == 7
        self.forgetful = [True, True]


def _lost(replies: Replies, client: int | None = None) -> LostWorkers:
    return LostWorkers(
        ADDRESSES, replies, 30.0, lambda: client, sleep=lambda seconds: None
    )


@pytest.mark.parametrize(
    ("now", "changes", "ended_alone"),
    [
        ((FIRST, SECOND), [], []),
        ((FIRST, SILENT), [r"^worker:1\b.*\bb:2\D+30\b"], []),
        ((OTHER, SECOND), [r"^worker:0\b.*\ba:1\b.*restarted"], [0]),
        ((FIRST, GONE), [r"^worker:1\b.*\bb:2\b.*gone"], [1]),
        (
            (GONE, OTHER),
            [r"^worker:0\b.*\ba:1\b.*gone", r"^worker:1\b.*\bb:2\b.*restarted"],
            [],
        ),
    ],
)
def test_lost_workers_are_named(
    now: Sequence[Answer], changes: list[str], ended_alone: list[int]
) -> None:
    """An outage of the network, which silences workers or loses several, ends none."""
    workers = _lost(Replies((FIRST, SECOND), now))
    assert not workers.absent()
    lost = workers.lost()
    assert len(lost) == len(changes)
    assert all(map(re.search, changes, lost))
    assert workers.ended_alone == ended_alone


def test_absent_workers_are_named_until_they_come_up() -> None:
    workers = _lost(Replies((GONE, SILENT), (FIRST, GONE), (FIRST, SECOND)))
    assert workers.absent() == {0: "worker:0 at a:1", 1: "worker:1 at b:2"}
    assert workers.absent() == {1: "worker:1 at b:2"}
    assert not workers.absent()
    assert workers.lost() == []


def test_a_worker_that_refuses_once_is_not_lost() -> None:
    workers = _lost(Replies((FIRST, SECOND), (FIRST, GONE), (FIRST, SECOND)))
    workers.absent()
    assert workers.lost() == []


def test_after_a_failure_a_process_may_take_time_to_die() -> None:
    up = (FIRST, SECOND)
    workers = _lost(Replies(up, up, (FIRST, GONE)))
    workers.absent()
    (line,) = workers.lost_after_failure()
    assert re.search(r"^worker:1\b.*\bb:2\b.*gone", line)


def test_the_timeout_is_the_time_for_an_answer() -> None:
    replies = Replies((FIRST, SECOND))
    _lost(replies).lost()
    assert replies.asked == [30.0]


def test_a_worker_may_forget_this_process() -> None:
    replies = Replies((FIRST, SECOND))
    workers = _lost(replies, client=7)
    workers.absent()
    assert workers.lost() == []
    replies.forgetful = [False, True]
    (line,) = workers.lost()
    assert re.search(r"^worker:1\b.*\bb:2\b.*forgotten", line)
    replies.forgetful = [False, False]
    workers.forget(7)
    assert len(workers.lost()) == 2
    not_connected = _lost(replies)
    not_connected.absent()
    assert not_connected.lost() == []


@pytest.mark.parametrize("isolated", [{0, 1}, {1}])
def test_workers_that_do_not_reach_each_other_are_lost(isolated: set[int]) -> None:
    """Whichever is asked first; a job waits until they do."""
    replies = Replies((FIRST, SECOND))
    workers = _lost(replies)
    assert not workers.absent()
    assert workers.lost() == []
    replies.isolated = isolated
    named = [f"worker:{task} at {ADDRESSES[task]}" for task in sorted(isolated)]
    lines = workers.lost() or workers.lost()
    assert [line.partition(",")[0] for line in lines] == named
    assert all("30" in line for line in lines)
    assert not workers.ended_alone  # The workers themselves are up.
    absent = workers.absent().values()
    assert [line.partition(",")[0] for line in absent] == named
    replies.isolated = set()
    assert not workers.absent()


NUMBERED = [Answer(str(i).encode()) for i in range(4)]


def _four(replies: Replies) -> LostWorkers:
    addresses = [f"host{i}:1" for i in range(4)]
    return LostWorkers(addresses, replies, 30.0, lambda: None, sleep=lambda x: None)


def test_workers_that_lose_each_other_are_lost_also_while_one_is_missing() -> None:
    replies = Replies((*NUMBERED[:3], GONE))
    workers = _four(replies)
    assert list(workers.silent()) == [3]
    workers.leave_out([3])
    replies.cut |= {(i, 3) for i in range(3)}
    assert workers.lost() == []
    replies.cut.add((2, 1))
    lines = sum((workers.lost() for _ in range(3)), [])
    assert [line.partition(" ")[0] for line in lines] == ["worker:2"]


def test_a_worker_is_back_if_all_used_workers_reach_it() -> None:
    replies = Replies(NUMBERED)
    workers = _four(replies)
    workers.leave_out([1, 3])
    assert workers.back() == {1: "", 3: ""}
    assert workers.back([1]) == {3: ""}
    replies.cut |= {(1, 3), (2, 3)}
    back = workers.back()
    assert back[1] == ""
    assert re.findall(r"worker:\d", back[3]) == ["worker:2"]
    replies.cut.add((1, 0))
    assert re.findall(r"worker:\d", workers.back()[1]) == ["worker:0"]
    assert workers.cut_pairs([0, 1, 2, 3]) == [(1, 0), (1, 3), (2, 3)]


def test_no_worker_may_be_left() -> None:
    workers = _four(Replies((GONE,) * 4))
    workers.leave_out(range(4))
    assert workers.lost() == []
