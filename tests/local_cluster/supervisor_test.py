"""A supervisor restarts what dies, kills what hangs, and ends with its trainer."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.tools.local_cluster import supervisor
from lingvo_pipe.tools.local_cluster.member import Worker
from lingvo_pipe.tools.local_cluster.supervisor import (
    MAX_RESTARTS,
    StoppedTime,
    Supervisor,
    is_stopped,
)


class Script(Worker):
    """A process with given states.

    Args:
        name: its name.
        codes: exit code at each look; the last one stays.
        hangs: True if it hangs until it is started again.
        was_up: True if it has answered before.
    """

    def __init__(
        self, name: str, *codes: int | None, hangs: bool = False, was_up: bool = True
    ) -> None:
        self.name, self.codes = name, list(codes)
        self.hangs, self.was_up = hangs, was_up
        self.did: list[str | int] = []
        self.is_dead = False

    @property
    def process(self) -> Any:
        return SimpleNamespace(pid=os.getpid(), send_signal=self.did.append)

    def start(self) -> None:
        self.hangs &= not self.did
        self.did.append("start")
        self.is_dead = False

    def is_hung(self) -> bool:
        return self.hangs

    def exit_code(self) -> int | None:
        if self.is_dead:
            return -9
        return self.codes[0]

    def next(self) -> None:
        if len(self.codes) > 1:
            self.codes.pop(0)

    def end(self) -> None:
        self.did.append("end")
        self.is_dead = True


def _run(
    monkeypatch: pytest.MonkeyPatch,
    trainer: Script,
    worker: Script,
    progress: Callable[[], str] = str,
    at_look: Callable[[int], None] = lambda look: None,
) -> tuple[int, list[str]]:
    """Runs a supervisor; returns its exit code and lines."""
    logged: list[str] = []
    looks = iter(range(1000))

    def sleep(seconds: float) -> None:
        at_look(next(looks))
        trainer.next()
        worker.next()

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    watched = Supervisor(trainer, [worker], 3.0, progress, logged.append)
    return watched.run(), logged


@pytest.mark.parametrize(
    ("trainer_codes", "worker_codes", "state", "code", "num_starts", "words"),
    [
        # It ends as the trainer does.
        ([None, 0], [None], {}, 0, (1, 1), ["^The trainer"]),
        ([None, 1], [None], {}, 1, (1, 1), ["^The trainer"]),
        ([None, -15], [None], {}, 143, (1, 1), ["^The trainer"]),
        # It restarts what is killed, or hangs.
        (
            [None, -9, None, None, 0],
            [None, None, 1, None],
            {},
            0,
            (2, 2),
            [r"^trainer\b.*\bSIGKILL\b", r"^worker:0\b.*\b1\b"],
        ),
        (
            [None, None, 0],
            [None],
            {"hangs": True},
            0,
            (1, 2),
            [r"^worker:0\b.*\b3\b", "^worker:0"],
        ),
        # It gives up, and does not restart a worker that never came up; but one that
        # was killed may still come up.
        (
            [None],
            [1],
            {},
            1,
            (1, 1 + MAX_RESTARTS),
            [rf"^error: .*\bworker:0\D+1\D+{MAX_RESTARTS}\b"],
        ),
        (
            [None],
            [None, -9, None, 1],
            {"was_up": False},
            1,
            (1, 2),
            ["^worker:0", r"^error: .*\bworker:0\D+1\b"],
        ),
    ],
)
def test_it_ends_with_the_trainer_and_restarts_what_dies_or_hangs(
    monkeypatch: pytest.MonkeyPatch,
    trainer_codes: list[int | None],
    worker_codes: list[int | None],
    state: dict[str, bool],
    code: int,
    num_starts: tuple[int, int],
    words: list[str],
) -> None:
    trainer = Script("trainer", *trainer_codes)
    members = trainer, Script("worker:0", *worker_codes, **state)
    found, logged = _run(monkeypatch, *members)
    assert found == code
    assert tuple(member.did.count("start") for member in members) == num_starts
    for member in members:
        # Each process ends before the next starts; ending it twice does nothing.
        runs = [did for did, _ in itertools.groupby(member.did)]
        assert runs == ["start", "end"] * member.did.count("start")
    shown = logged if words[-1].startswith("^error") else logged[: len(words)]
    assert all(map(re.search, words, shown[-len(words) :]))


def test_progress_allows_more_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [None, *[-9] * (3 * MAX_RESTARTS), 0]
    trainer, worker = Script("trainer", *codes), Script("worker:0", None)
    found = iter(range(1000))
    code, _ = _run(monkeypatch, trainer, worker, progress=lambda: str(next(found)))
    assert code == 0


def test_a_signal_ends_the_trainer_after_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Script("trainer", None, None, None, None, 0)
    worker = Script("worker:0", None, None, -9)  # No restart: all ends.

    def send(look: int) -> None:
        if look == 0:
            os.kill(os.getpid(), signal.SIGINT)

    code, logged = _run(monkeypatch, trainer, worker, at_look=send)
    assert code == 0
    assert re.search(r"^SIGINT: .*\btrainer\b", logged[0])
    assert trainer.did == ["start", signal.SIGTERM, "end"]
    assert worker.did == ["start", "end"]


def test_a_signal_during_a_restart_ends_the_new_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the process before got it, and the new one trained to its last step."""
    trainer = Script("trainer", None, -9, None, None, 0)
    start = trainer.start

    def start_at_signal() -> None:
        if trainer.did:
            os.kill(os.getpid(), signal.SIGTERM)
        start()

    monkeypatch.setattr(trainer, "start", start_at_signal)
    assert _run(monkeypatch, trainer, Script("worker:0", None))[0] == 0
    assert trainer.did == ["start", "end", "start", signal.SIGTERM, "end"]


def test_a_second_signal_ends_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, worker = Script("trainer", None), Script("worker:0", None)

    def send(look: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert _run(monkeypatch, trainer, worker, at_look=send)[0] == 143
    assert trainer.did[-1] == worker.did[-1] == "end"


def test_an_error_at_the_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, worker = Script("trainer", None), Script("worker:0", None)

    def fail() -> None:
        raise OSError("No more processes.")

    monkeypatch.setattr(trainer, "start", fail)
    with pytest.raises(OSError, match="No more"):
        _run(monkeypatch, trainer, worker)
    assert worker.did == ["start", "end"]


def test_time_between_distant_looks_does_not_count() -> None:
    now = [0.0]
    stopped = StoppedTime(lambda: now[0])
    seen = []
    for at, is_stopped_now in ((0.2, True), (0.7, True), (90, True), (91, False)):
        now[0] = at
        seen.append(stopped.look(is_stopped_now))
    assert seen == pytest.approx([0.2, 0.7, 1.7, 0.0])


def test_a_process_is_stopped_by_a_signal() -> None:
    assert not is_stopped(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(process.pid)
        process.kill()
