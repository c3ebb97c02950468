"""A job waits for its workers, survives their loss, and gives up in the end."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NoReturn

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.fault_tolerance import worker_watch
from lingvo_pipe.fault_tolerance.departures import Use
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.worker_status import (
    Answer,
    LostWorkers,
    WorkerQuestions,
)
from lingvo_pipe.fault_tolerance.worker_watch import (
    WorkerWatch,
    own_client_number,
    set_keep_alive,
)

# The thread raises `Ended` in place of a restart.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)

UP, SILENT, GONE = Answer(b"1"), Answer(), Answer(is_gone=True)
PATIENCE = 300.0  # Seconds, on a busy machine.


class Ended(BaseException):
    """Raised where a process would end, with an exit code, or restart, without."""


class Worker(WorkerQuestions):
    """A worker with a given answer."""

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
    """Restarts that raise."""

    def __init__(
        self, in_a_row: int = 0, error: Exception | None = None, before: int = 6
    ) -> None:
        self.in_a_row, self.client_before = in_a_row, before
        self.on_restart: Callable[[], None] = lambda: None
        self.restarted, self._error = threading.Event(), error
        self.client: int | None = None

    def finish_saving(self) -> None:
        pass

    def again(
        self,
        client: int | None,
        cause: str,
        stop: Callable[[], None],
        **variables: str,
    ) -> NoReturn:
        self.client = client
        self.on_restart()
        stop()
        self.restarted.set()
        raise self._error or Ended


@pytest.fixture(autouse=True)
def _no_signal_ends_this_process() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *unused: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _no_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(worker_watch.os, "_exit", leave)
    monkeypatch.setattr(context, "_KEEP_ALIVE_SECS", context._KEEP_ALIVE_SECS)


class Leaving:
    """A use of a worker that is leaving until it is let go."""

    def __init__(self) -> None:
        self.was_let_go = threading.Event()

    def renew(self, tasks: Collection[int]) -> set[int]:
        return {*tasks}

    def end(self, tasks: Collection[int]) -> None:
        if tasks:
            self.was_let_go.set()


def _watch(
    worker: Worker,
    logged: list[str],
    restarts: FakeRestarts | None = None,
    patience: float = 0.0,
    timeout: float = 30.0,
    use: Use | None = None,
    elastic: ElasticWorkers | None = None,
) -> WorkerWatch:
    lost = LostWorkers(["a:1"], worker, timeout, lambda: 7, sleep=lambda seconds: None)
    counted: object = restarts or FakeRestarts()
    return WorkerWatch(
        lost,
        timeout,
        patience,
        counted,  # type: ignore[arg-type]
        True,
        logged.append,
        elastic,
        use,
        save=lambda: True,
        on_end=lambda: logged.append("ended"),
    )


def _do(watch: WorkerWatch, job: Callable[[], None]) -> None:
    """Runs a job under a watch."""
    with watch.surviving():
        watch.begin()
        job()


def _fails(
    worker: Worker, answer: Answer, error: Exception | None = None
) -> Callable[[], None]:
    """Returns a job that fails, and after which the worker gives another answer."""

    def job() -> None:
        worker.answer = answer
        raise error or ValueError("Some consequence.")

    return job


def test_a_worker_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_watch, "_POLL_SECONDS", 0.01)
    logged: list[str] = []
    absent = r"\bworker:0\b.*\ba:1\D+2\b.*--wait_for_workers_seconds\b"
    with pytest.raises(UserClusterError, match=absent):
        _watch(Worker(GONE), logged, patience=2.0).begin()
    assert len(logged) == 1
    assert re.search(r"\bworker:0\b.*\ba:1\b", logged[0])


@pytest.mark.parametrize("error", [ValueError("a"), ConnectionError("b")])
def test_an_error_of_another_kind_is_raised(error: Exception) -> None:
    worker = Worker(UP)
    with pytest.raises(type(error), match=str(error)):
        _do(_watch(worker, []), _fails(worker, UP, error))


def test_an_error_before_the_watch_begins_is_raised() -> None:
    with pytest.raises(ValueError, match="x"), _watch(Worker(GONE), []).surviving():
        raise ValueError("x")


def _broken(message: str) -> Exception:
    error = ConnectionError("A worker")
    error.__cause__ = tf.errors.UnavailableError(None, None, message)
    return error


@pytest.mark.parametrize(
    ("restarts", "answer", "error", "code", "words"),
    [
        (FakeRestarts(), GONE, None, None, [r"^worker:0\b.*\ba:1\b.*\bgone\b"]),
        (FakeRestarts(), Answer(b"2"), None, None, [r"^worker:0\b.*\brestarted\b"]),
        (FakeRestarts(), UP, _broken("Socket closed\nx"), None, [": Socket closed"]),
        (FakeRestarts(), UP, _broken(""), None, [": Unavailable"]),
        # Restarts in a row are bounded, and may fail.
        (
            FakeRestarts(in_a_row=5),
            GONE,
            None,
            UserClusterError.exit_code,
            [r"^worker:0\b", r"^error: .*\b6\b.*\.save_interval_steps\b"],
        ),
        (
            FakeRestarts(error=OSError("broken")),
            GONE,
            None,
            1,
            [r"^worker:0\b", "checkpoint", r"^error: .*: broken\b"],
        ),
    ],
)
def test_a_loss_restarts_the_process_or_ends_it(
    restarts: FakeRestarts,
    answer: Answer,
    error: Exception | None,
    code: int | None,
    words: list[str],
) -> None:
    worker, logged = Worker(UP), list[str]()
    with pytest.raises(Ended) as ended:
        _do(_watch(worker, logged, restarts), _fails(worker, answer, error))
    assert worker.to_forget == [6]
    words = [*words, "checkpoint" if code is None else "^ended$"]
    assert len(logged) == len(words)
    assert all(map(re.search, words, logged))
    if code is None:
        assert ended.value.args == ()
        assert restarts.client == 7
    else:
        assert ended.value.args == (code,)


def test_a_worker_that_hangs_is_noticed_while_nothing_fails() -> None:
    worker, restarts, logged = Worker(UP), FakeRestarts(), list[str]()
    watch = _watch(worker, logged, restarts, timeout=1.0)
    with watch.surviving():
        watch.begin()
        worker.answer = SILENT
        assert restarts.restarted.wait(PATIENCE)
    assert re.search(r"^worker:0\b.*\ba:1\D+1\b", logged[0])


@pytest.mark.parametrize("is_elastic", [True, False])
def test_a_job_restarts_when_it_has_let_a_worker_go(is_elastic: bool) -> None:
    """An elastic job does not wait for the worker."""
    policy = ElasticWorkers(
        *(5.0, 60.0, LeftOut(workers=(2,)), lambda: "", lambda line: None)
    )
    restarts, use, logged = FakeRestarts(), Leaving(), list[str]()
    elastic = policy if is_elastic else None
    policy.absent = lambda workers: workers.absent()  # type: ignore[method-assign]
    watch = _watch(Worker(UP), logged, restarts, timeout=1.0, use=use, elastic=elastic)
    with watch.surviving():
        watch.begin()
        assert restarts.restarted.wait(PATIENCE)
    assert use.was_let_go.is_set()
    assert re.search(r"^worker:0 at a:1 is leaving: ", logged[0])
    assert policy.left_out.workers == ((0,) if is_elastic else (2,))


def test_a_job_that_has_a_signal_lets_no_worker_go() -> None:
    """It saves its last step, and needs all workers until then."""
    use, restarts = Leaving(), FakeRestarts()
    watch = _watch(Worker(UP), [], restarts, use=use)
    with watch.surviving():
        watch.begin()
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch._let_go() == []
        assert not use.was_let_go.is_set()
    assert use.was_let_go.is_set()  # The job is over.
    assert not restarts.restarted.is_set()


def test_a_process_with_a_termination_signal_ends_instead_of_restarting() -> None:
    worker, restarts, logged = Worker(UP), FakeRestarts(), list[str]()
    watch = _watch(worker, logged, restarts)

    def job() -> None:
        signal.raise_signal(signal.SIGTERM)
        _fails(worker, GONE)()

    with pytest.raises(Ended) as ended:
        _do(watch, job)
    assert ended.value.args == (143,)
    assert re.search(r"\bSIGTERM\b.*checkpoint", logged[-2])
    assert logged[-1] == "ended"


def test_a_signal_that_comes_before_the_restart_ends_the_process() -> None:
    worker, restarts, logged = Worker(UP), FakeRestarts(), list[str]()
    restarts.on_restart = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Ended) as ended:
        _do(_watch(worker, logged, restarts), _fails(worker, GONE))
    assert ended.value.args == (143,)
    assert not restarts.restarted.is_set()
    assert re.search(r"\bSIGTERM\b.*checkpoint", logged[-2])


@pytest.mark.parametrize("answer", [GONE, UP])
def test_a_signal_ends_a_process_that_waits_for_workers(answer: Answer) -> None:
    """Also if the worker comes up at this moment."""
    worker, logged = Worker(GONE), list[str]()
    watch = _watch(worker, logged, patience=60.0)

    def ask(seconds: float) -> Sequence[Answer]:
        os.kill(os.getpid(), signal.SIGTERM)
        return [answer]

    worker.ask = ask  # type: ignore[method-assign]
    with pytest.raises(SystemExit) as ended:
        watch.begin()
    assert ended.value.code == 143
    assert re.search(r"\bSIGTERM\b.*checkpoint", logged[-1])


def test_a_watch_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, logged, over = Worker(UP), list[str](), threading.Event()

    def leave(code: int) -> NoReturn:
        logged.append(str(code))
        over.set()
        raise Ended

    monkeypatch.setattr(worker_watch.os, "_exit", leave)
    watch = _watch(worker, logged, timeout=1.0)
    with watch.surviving():
        watch.begin()
        worker.answer = None  # type: ignore[assignment]
        assert over.wait(PATIENCE)
    assert re.search("^error: .*: 'NoneType' ", logged[-3])
    assert logged[-2:] == ["ended", "1"]


def test_a_loss_that_is_noticed_after_the_end_changes_nothing() -> None:
    worker, restarts, logged = Worker(UP), FakeRestarts(), list[str]()
    watch = _watch(worker, logged, restarts)
    _do(watch, lambda: None)
    watch._restart(["worker:0 at a:1 is gone."])
    assert not restarts.restarted.is_set()
    assert logged == []


def test_this_version_of_tensorflow_has_the_keep_alive_setting() -> None:
    assert set_keep_alive(77)
    assert context._KEEP_ALIVE_SECS == 77
    assert own_client_number() is None  # It has no workers.
