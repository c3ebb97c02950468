"""A job waits for its workers, survives their loss, and gives up in the end."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from lingvo_pipe.failures import worker_watch
from lingvo_pipe.failures.asked_to_end import AskedToEnd
from lingvo_pipe.failures.keep_alive import forget_trainers_after, own_number
from lingvo_pipe.failures.lost_workers import LostWorkers
from lingvo_pipe.failures.worker_answers import Answer
from lingvo_pipe.failures.worker_watch import WorkerWatch

# What the thread raises in place of a restart is no failure of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)

UP, SILENT, GONE = Answer(b"1"), Answer(), Answer(is_gone=True)


class Ended(BaseException):
    """Where a process would end or restart: with an exit code, or without."""


class Worker:
    """A worker that answers as it is told to."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.to_forget: list[int] = []

    def ask(self, seconds: float) -> Sequence[Answer]:
        return [self.answer]

    def forgotten(self, client: int, seconds: float) -> Sequence[bool]:
        return [False]

    def forget(self, client: int, seconds: float) -> None:
        self.to_forget.append(client)


class FakeRestarts:
    """Counts up to what it is given."""

    def __init__(
        self, in_a_row: int = 0, error: Exception | None = None, before: int = 6
    ) -> None:
        self.in_a_row, self.client_before = in_a_row, before
        self.restarted, self._error = threading.Event(), error
        self.client: int | None = None

    def again(self, client: int | None) -> NoReturn:
        self.client = client
        self.restarted.set()
        raise self._error or Ended


@pytest.fixture(autouse=True)
def _no_exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def leave(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(worker_watch.os, "_exit", leave)
    before = context._KEEP_ALIVE_SECS
    yield
    context._KEEP_ALIVE_SECS = before


def _watch(
    worker: Worker,
    said: list[str],
    restarts: FakeRestarts | None = None,
    patience: float = 0.0,
    timeout: float = 30.0,
) -> WorkerWatch:
    lost = LostWorkers(["a:1"], worker, timeout, lambda: 7, sleep=lambda seconds: None)
    counted: object = restarts or FakeRestarts()
    return WorkerWatch(
        lost,
        timeout,
        patience,
        counted,  # type: ignore[arg-type]
        True,
        said.append,
        on_end=lambda: said.append("dismissed"),
    )


def _do(watch: WorkerWatch, job: Callable[[], None]) -> None:
    """Has a watch survive a job."""
    with watch.surviving():
        watch.begin()
        job()


def _fails(
    worker: Worker, answer: Answer, error: Exception | None = None
) -> Callable[[], None]:
    """A job that fails, and a worker that answers otherwise then."""

    def job() -> None:
        worker.answer = answer
        raise error or ValueError("Whatever follows from that.")

    return job


def _end_asked_for(worker: Worker) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    worker.answer = GONE
    raise ValueError("Whatever follows from that.")


def test_a_worker_that_never_comes_is_an_error() -> None:
    said: list[str] = []
    told = r"\bworker:0\b.*\ba:1\D+2\b.*--wait_for_workers_seconds\b"
    with pytest.raises(ConnectionError, match=told):
        _watch(Worker(GONE), said, patience=2.0).begin()
    assert len(said) == 1
    assert re.search(r"\bworker:0\b.*\ba:1\b", said[0])


@pytest.mark.parametrize("error", [ValueError("a"), ConnectionError("b")])
def test_an_error_of_another_kind_is_told(error: Exception) -> None:
    worker = Worker(UP)
    with pytest.raises(type(error), match=str(error)):
        _do(_watch(worker, []), _fails(worker, UP, error))


def test_an_error_before_workers_are_met_is_told() -> None:
    with pytest.raises(ValueError, match="x"), _watch(Worker(GONE), []).surviving():
        raise ValueError("x")


@pytest.mark.parametrize(
    ("answer", "fate"), [(GONE, "gone"), (Answer(b"2"), "restarted")]
)
def test_the_loss_of_a_worker_restarts_the_process(answer: Answer, fate: str) -> None:
    worker, restarts = Worker(UP), FakeRestarts()
    said: list[str] = []
    watch = _watch(worker, said, restarts)
    with pytest.raises(Ended):
        _do(watch, _fails(worker, answer))
    assert restarts.restarted.is_set()
    assert restarts.client == 7
    assert worker.to_forget == [6]
    lost, then = said
    assert re.search(rf"^worker:0\b.*\ba:1\b.*\b{fate}\b", lost)
    assert "checkpoint" in then


@pytest.mark.parametrize(
    ("message", "told"), [("Socket closed\nx", "Socket closed"), ("", "Unavailable")]
)
def test_a_failed_connection_restarts_the_process(message: str, told: str) -> None:
    worker = Worker(UP)
    said: list[str] = []
    error = ConnectionError("A worker")
    error.__cause__ = tf.errors.UnavailableError(None, None, message)
    with pytest.raises(Ended):
        _do(_watch(worker, said), _fails(worker, UP, error))
    assert re.search(f": {told}", said[0])


def test_a_worker_that_hangs_is_noticed_while_nothing_fails() -> None:
    worker, restarts = Worker(UP), FakeRestarts()
    said: list[str] = []
    watch = _watch(worker, said, restarts, timeout=1.0)
    with watch.surviving():
        watch.begin()
        worker.answer = SILENT
        assert restarts.restarted.wait(20)
    assert re.search(r"^worker:0\b.*\ba:1\D+1\b", said[0])


def test_no_restart_is_one_too_many() -> None:
    worker, restarts = Worker(UP), FakeRestarts(in_a_row=5)
    said: list[str] = []
    watch = _watch(worker, said, restarts)
    with pytest.raises(Ended) as ended:
        _do(watch, _fails(worker, GONE))
    assert ended.value.args == (1,)
    assert not restarts.restarted.is_set()
    assert re.search(r"^error: .*\b6\b.*\.save_interval_steps\b", said[-2])
    assert said[-1] == "dismissed"


def test_who_was_asked_to_end_does_not_restart() -> None:
    worker, restarts = Worker(UP), FakeRestarts()
    said: list[str] = []
    watch = _watch(worker, said, restarts)
    before = signal.signal(signal.SIGTERM, lambda *unused: None)
    try:
        with pytest.raises(Ended) as ended:
            _do(watch, lambda: _end_asked_for(worker))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.args == (143,)
    assert re.search(r"\bSIGTERM\b.*checkpoint", said[-2])
    assert said[-1] == "dismissed"


def test_a_restart_that_fails_ends_the_process() -> None:
    worker, said = Worker(UP), list[str]()
    watch = _watch(worker, said, FakeRestarts(error=OSError("broken")))
    with pytest.raises(Ended) as ended:
        _do(watch, _fails(worker, GONE))
    assert ended.value.args == (1,)
    assert re.search(r"^error: .*: broken\b", said[-2])


def test_a_watch_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, said, over = Worker(UP), list[str](), threading.Event()

    def leave(code: int) -> NoReturn:
        said.append(str(code))
        over.set()
        raise Ended

    monkeypatch.setattr(worker_watch.os, "_exit", leave)
    watch = _watch(worker, said, timeout=1.0)
    with watch.surviving():
        watch.begin()
        worker.answer = None  # type: ignore[assignment]
        assert over.wait(20)
    assert re.search("^error: .*: 'NoneType' ", said[-3])
    assert said[-2:] == ["dismissed", "1"]


def test_a_loss_that_is_noticed_after_the_end_is_none() -> None:
    worker, restarts, said = Worker(UP), FakeRestarts(), list[str]()
    watch = _watch(worker, said, restarts)
    _do(watch, lambda: None)
    watch._restart(["worker:0 at a:1 is gone."])
    assert not restarts.restarted.is_set()
    assert said == []


def test_who_notes_signals_no_more_can_be_asked_for_them() -> None:
    asked = AskedToEnd()
    asked.close()
    assert asked.by() is None


def test_this_version_of_tensorflow_forgets_trainers_when_told() -> None:
    assert forget_trainers_after(77)
    assert context._KEEP_ALIVE_SECS == 77
    assert own_number() is None  # It has workers nowhere.
