"""A supervisor starts again what dies, kills what hangs, and ends when it should."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lingvo_pipe.failures.worker_answers import Answer
from tools.local_cluster import free_ports as ports
from tools.local_cluster import supervisor
from tools.local_cluster.free_ports import free_ports
from tools.local_cluster.process_state import is_stopped
from tools.local_cluster.pulse import Pulse
from tools.local_cluster.stopped_time import StoppedTime
from tools.local_cluster.supervisor import MOST_RESTARTS, Supervisor


class Script:
    """A process that does at each look what it is told to.

    Args:
        name: its name.
        codes: what `exit_code` is at each look; the last one stays.
    """

    def __init__(self, name: str, *codes: int | None) -> None:
        self.name, self.pid, self.codes = name, os.getpid(), list(codes)
        self.did: list[str | int] = []
        self.is_dead = False

    def start(self) -> None:
        self.did.append("start")
        self.is_dead = False

    def exit_code(self) -> int | None:
        if self.is_dead:
            return -9
        return self.codes[0]

    def next(self) -> None:
        if len(self.codes) > 1:
            self.codes.pop(0)

    def send_signal(self, number: int) -> None:
        self.did.append(number)

    def end(self) -> None:
        self.did.append("end")
        self.is_dead = True


class Beat:
    """A heartbeat that stops when it is told to."""

    def __init__(self, hangs: bool = False, was_up: bool = True) -> None:
        self.hangs, self._was_up = hangs, was_up

    def was_up(self) -> bool:
        return self._was_up

    def restarted(self) -> None:
        self.hangs = False

    def is_hung(self) -> bool:
        return self.hangs


def _run(
    monkeypatch: pytest.MonkeyPatch,
    trainer: Script,
    worker: Script,
    beat: Beat | None = None,
    progress: Callable[[], str] = str,
    at_look: Callable[[int], None] = lambda look: None,
) -> tuple[int, list[str]]:
    """Runs a supervisor; returns its exit code and what it said."""
    said: list[str] = []
    looks = iter(range(1000))

    def sleep(seconds: float) -> None:
        at_look(next(looks))
        trainer.next()
        worker.next()

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    pairs = [(worker, beat or Beat())]
    return Supervisor(trainer, pairs, 3.0, progress, said.append).run(), said


@pytest.mark.parametrize(("code", "ours"), [(0, 0), (1, 1), (-15, 143)])
def test_it_ends_as_the_trainer_does(
    monkeypatch: pytest.MonkeyPatch, code: int, ours: int
) -> None:
    trainer, worker = Script("trainer", None, code), Script("worker:0", None)
    assert _run(monkeypatch, trainer, worker)[0] == ours
    assert trainer.did == worker.did == ["start", "end"]


def test_what_was_killed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Script("trainer", None, -9, None, None, 0)
    worker = Script("worker:0", None, None, 1, None)
    code, said = _run(monkeypatch, trainer, worker)
    assert code == 0
    assert trainer.did == worker.did == ["start", "end", "start", "end"]
    assert re.search(r"^trainer\b.*\bSIGKILL\b", said[0])
    assert re.search(r"^worker:0\b.*\b1\b", said[1])


def test_what_hangs_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, worker = Script("trainer", None, None, 0), Script("worker:0", None)
    code, said = _run(monkeypatch, trainer, worker, Beat(hangs=True))
    assert code == 0
    assert re.search(r"^worker:0\b.*\b3\b", said[0])
    assert worker.did == ["start", "end", "end", "start", "end"]


def test_restarts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, worker = Script("trainer", None), Script("worker:0", 1)
    code, said = _run(monkeypatch, trainer, worker)
    assert code == 1
    assert worker.did.count("start") == 1 + MOST_RESTARTS
    assert re.search(rf"^error: .*\bworker:0\D+1\D+{MOST_RESTARTS}\b", said[-1])


def test_a_worker_that_can_not_come_up_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, worker = Script("trainer", None), Script("worker:0", None, -9, None, 1)
    code, said = _run(monkeypatch, trainer, worker, Beat(was_up=False))
    assert code == 1
    assert worker.did.count("start") == 2  # What was killed may come up.
    assert re.search(r"^error: .*\bworker:0\D+1\b", said[-1])


def test_progress_allows_more_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [None, *[-9] * (3 * MOST_RESTARTS), 0]
    trainer, worker = Script("trainer", *codes), Script("worker:0", None)
    found = iter(range(1000))
    code, _ = _run(monkeypatch, trainer, worker, progress=lambda: str(next(found)))
    assert code == 0


def test_the_trainer_is_asked_to_end_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Script("trainer", None, None, None, None, 0)
    worker = Script("worker:0", None, None, -9)  # Which is no use any more.

    def ask(look: int) -> None:
        if look == 0:
            os.kill(os.getpid(), signal.SIGINT)

    code, said = _run(monkeypatch, trainer, worker, at_look=ask)
    assert code == 0
    assert re.search(r"^SIGINT: .*\btrainer\b", said[0])
    assert trainer.did == ["start", signal.SIGTERM, "end"]
    assert worker.did == ["start", "end"]


def test_who_asks_twice_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, worker = Script("trainer", None), Script("worker:0", None)

    def ask(look: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert _run(monkeypatch, trainer, worker, at_look=ask)[0] == 143
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


def test_time_that_nobody_looked_is_no_time() -> None:
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


@pytest.mark.parametrize(
    ("systems", "end"), [("32768\t60999", 32768), ("9000\t65000", 65536)]
)
def test_ports_are_different_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, systems: str, end: int
) -> None:
    path = tmp_path / "ip_local_port_range"
    path.write_text(systems)
    monkeypatch.setattr(ports, "_RANGE", path)
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(10_000 <= port < end for port in found)


class Reply:
    """A worker's answers."""

    def __init__(self) -> None:
        self.answer = Answer(is_gone=True)
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(self, seconds: float) -> list[Answer]:
        self.meanwhile()
        return [self.answer]


def test_a_worker_hangs_if_it_stops_to_answer_or_does_not_begin() -> None:
    now, reply = [0.0], Reply()
    pulse = Pulse(reply, 3.0, lambda: now[0])

    def is_hung(answer: Answer) -> bool:
        reply.answer = answer
        pulse.ask()
        return pulse.is_hung()

    assert not is_hung(Answer())  # It starts.
    assert not pulse.was_up()
    assert not is_hung(Answer(b"1"))
    assert is_hung(Answer())
    assert not is_hung(Answer(b"1"))
    now[0] = 1000.0
    assert not is_hung(Answer(is_gone=True))  # It has ended, which is seen elsewhere.
    pulse.restarted()
    assert not is_hung(Answer(is_gone=True))
    assert pulse.was_up()
    now[0] = 2000.0
    assert is_hung(Answer(is_gone=True))


def test_an_answer_that_another_process_owed_is_none() -> None:
    reply = Reply()
    pulse = Pulse(reply, 3.0)
    reply.answer = Answer(b"1")
    pulse.ask()
    reply.answer, reply.meanwhile = Answer(), pulse.restarted
    pulse.ask()
    assert not pulse.is_hung()
