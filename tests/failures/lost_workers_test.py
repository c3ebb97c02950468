"""Which workers are lost follows from what they answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from lingvo_pipe.failures.lost_workers import LostWorkers
from lingvo_pipe.failures.worker_answers import Answer

ADDRESSES = ("a:1", "b:2")
GONE, SILENT = Answer(is_gone=True), Answer()
FIRST, SECOND, OTHER = Answer(b"1"), Answer(b"2"), Answer(b"3")


class Replies:
    """Gives answers one after another, the last of them for ever."""

    def __init__(self, *answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.asked: list[float] = []
        self.forgetful = [False, False]

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
    ("now", "told"),
    [
        ((FIRST, SECOND), []),
        ((FIRST, SILENT), [r"^worker:1\b.*\bb:2\D+30\b"]),
        ((OTHER, SECOND), [r"^worker:0\b.*\ba:1\b.*restarted"]),
        (
            (GONE, OTHER),
            [r"^worker:0\b.*\ba:1\b.*gone", r"^worker:1\b.*\bb:2\b.*restarted"],
        ),
    ],
)
def test_lost_workers_are_named(now: Sequence[Answer], told: list[str]) -> None:
    workers = _lost(Replies((FIRST, SECOND), now))
    assert workers.absent() == []
    lost = workers.lost()
    assert len(lost) == len(told)
    assert all(map(re.search, told, lost))


def test_those_that_are_not_up_are_waited_for() -> None:
    workers = _lost(Replies((GONE, SILENT), (FIRST, GONE), (FIRST, SECOND)))
    assert workers.absent() == ["worker:0 at a:1", "worker:1 at b:2"]
    assert workers.absent() == ["worker:1 at b:2"]
    assert workers.absent() == []
    assert workers.lost() == []


def test_a_single_refusal_is_looked_at_again() -> None:
    workers = _lost(Replies((FIRST, SECOND), (FIRST, GONE), (FIRST, SECOND)))
    workers.absent()
    assert workers.lost() == []


def test_after_a_failure_a_process_may_take_time_to_die() -> None:
    up = (FIRST, SECOND)
    workers = _lost(Replies(up, up, (FIRST, GONE)))
    workers.absent()
    (line,) = workers.lost_after_failure()
    assert re.search(r"^worker:1\b.*\bb:2\b.*gone", line)


def test_answers_are_waited_for_as_long_as_was_told() -> None:
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
