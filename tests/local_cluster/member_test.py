"""A worker that hangs is told from one that starts, answers or is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lingvo_pipe.fault_tolerance.worker_status import Answer, WorkerQuestions
from lingvo_pipe.tools.local_cluster.member import Worker


@pytest.fixture(autouse=True)
def _ended_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends each process that a worker starts."""
    start, processes = Worker.start, []

    def noted_start(worker: Worker) -> None:
        start(worker)
        processes.append(worker.process)

    monkeypatch.setattr(Worker, "start", noted_start)
    yield
    for process in processes:
        process.kill()
        process.wait()


class Replies(WorkerQuestions):
    """A worker's given answer."""

    def __init__(self) -> None:
        self.answer = Answer(is_gone=True)
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(self, seconds: float) -> list[Answer]:
        self.meanwhile()
        return [self.answer]


def test_a_worker_hangs_if_it_stops_to_answer_or_never_answers() -> None:
    now, replies = [0.0], Replies()
    worker = Worker("w", ["-c", ""], [], replies, 3.0, lambda: now[0])
    worker.start()

    def is_hung(answer: Answer) -> bool:
        replies.answer = answer
        worker.ask()
        return worker.is_hung()

    assert not is_hung(Answer())  # It starts.
    was_up = worker.was_up
    assert not was_up
    assert not is_hung(Answer(b"1"))
    assert is_hung(Answer())
    assert not is_hung(Answer(b"1"))
    now[0] = 1000.0
    assert not is_hung(Answer(is_gone=True))  # Its exit code tells.
    worker.start()
    assert not is_hung(Answer(is_gone=True))
    assert worker.was_up
    now[0] = 2000.0
    assert is_hung(Answer(is_gone=True))


def test_an_answer_of_an_earlier_process_does_not_count() -> None:
    replies = Replies()
    worker = Worker("w", ["-c", ""], [], replies, 3.0)
    worker.start()
    replies.answer = Answer(b"1")
    worker.ask()
    replies.answer, replies.meanwhile = Answer(), worker.start
    worker.ask()
    assert not worker.is_hung()
