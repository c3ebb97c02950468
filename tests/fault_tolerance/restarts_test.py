"""A process replaces itself, and counts its restarts without progress."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

import lingvo_pipe
from lingvo_pipe.fault_tolerance import restarts as module
from lingvo_pipe.fault_tolerance.restarts import ProcessStart, Restarts, progress_of

ROOT = Path(lingvo_pipe.__file__).parents[1]
# Restarts from a thread while the main thread hangs, in another folder and with other
# variables. Each process leaves a file open that the next must not inherit. The death
# signal must stay.
PROGRAM = """
import ctypes, os, sys, threading
from lingvo_pipe.fault_tolerance.restarts import ProcessStart, Restarts
if "LINGVO_PIPE_RESTARTS" not in os.environ:
    ctypes.CDLL(None).prctl(1, 12, 0, 0, 0)
start = ProcessStart.now()
progress = lambda: "new" if int(os.environ.get("N", 0)) > 2 else "old"
restarts = Restarts(start, progress)
files = len(os.listdir("/proc/self/fd"))
left = int(sys.argv[1]) - restarts.in_a_row
assert restarts.client_before == (None, 2**64 - 1, None, 7)[restarts.in_a_row]
assert restarts.cause == ("", "c3", "c3 c2", "c3 c2 c1")[restarts.in_a_row]
assert os.environ.get("MORE") == (None, "3", "2", "1")[restarts.in_a_row]
client = (2**64 - 1, None, 7)[restarts.in_a_row] if left else None
about = os.getpid(), os.getcwd(), files, os.environ.get("LEFT"), start.death_signal
print(*about, left, flush=True)
if not left:
    sys.exit(7)
os.environ["LEFT"] = "behind"
os.chdir("/")
os.dup2(os.open("/", os.O_RDONLY), 77)
lock = threading.Lock()
lock.acquire()
again = lambda: restarts.again(client, f"c{left}", MORE=str(left))
threading.Thread(target=again, daemon=True).start()
lock.acquire()
"""


def test_a_process_starts_again_as_it_was_started(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "3"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 7
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[-1] for line in lines] == ["3", "2", "1", "0"]
    assert len({tuple(line[:-1]) for line in lines}) == 1
    assert lines[0][1] == str(tmp_path)
    assert lines[0][3:5] == ["None", "12"]


@pytest.mark.parametrize(
    ("stored", "now", "number"),
    [("", "a", 0), ("4 a b", "a b", 4), ("4 a b", "a c", 0), ("what", "", 0)],
)
def test_restarts_without_progress_are_counted(
    stored: str, now: str, number: int
) -> None:
    start = ProcessStart((), "", {"LINGVO_PIPE_RESTARTS": stored})
    assert Restarts(start, lambda: now).in_a_row == number


def test_a_new_checkpoint_is_progress(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    seen = [progress_of("trainer", str(tmp_path))]
    for name in ("ckpt-00000003.index", "ckpt-00000006.index"):
        (folder / name).touch()
        seen.append(progress_of("trainer", str(tmp_path)))
    assert len(set(seen)) == len(seen)
    (folder / "incomplete").mkdir()
    assert progress_of("trainer", str(tmp_path)) == seen[-1]
    assert progress_of("evaler", str(tmp_path)) == progress_of("evaler", "/nowhere")


@pytest.mark.parametrize(("progress", "causes"), [("a", "x y"), ("b", "y")])
def test_causes_are_kept_until_there_is_progress(
    monkeypatch: pytest.MonkeyPatch, progress: str, causes: str
) -> None:
    """Also of a restart that was taken back, as far as a variable has room."""
    variables: dict[str, str] = {}

    def again(self: ProcessStart, stop: object, **changes: str) -> NoReturn:
        variables.update(changes)
        raise InterruptedError

    monkeypatch.setattr(ProcessStart, "again", again)
    before = {"LINGVO_PIPE_RESTARTS": "1 a", "LINGVO_PIPE_RESTART_CAUSE": "x"}
    restarts = Restarts(ProcessStart((), "", before), lambda: progress)
    restarts.discount()
    with pytest.raises(InterruptedError):
        restarts.again(None, "y")
    assert variables["LINGVO_PIPE_RESTART_CAUSE"] == causes
    assert variables["LINGVO_PIPE_RESTARTS"] == f"1 {progress}"
    with pytest.raises(InterruptedError):
        restarts.again(None, "€" * 100_000)
    assert len(variables["LINGVO_PIPE_RESTART_CAUSE"].encode()) < 128 * 1024 - 99


def test_a_restart_waits_for_a_checkpoint_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, logged = iter([True, True, False]), list[str]()
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None)
    monkeypatch.setattr(module, "time", clock)
    start = ProcessStart((), "", {})
    restarts = Restarts(start, lambda: "", lambda: next(answers), logged.append)
    restarts.finish_saving()
    assert [*answers] == []
    assert len(logged) == 1


def test_a_checkpoint_is_given_up_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    logged: list[str] = []
    start = ProcessStart((), "", {})
    restarts = Restarts(start, lambda: "", lambda: True, logged.append)
    restarts.finish_saving()
    assert len(logged) == 2


def test_a_signal_that_comes_until_the_restart_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "execve", lambda *unused: done.append("restart"))
    monkeypatch.setattr(os, "set_inheritable", lambda *unused: None)
    monkeypatch.chdir(tmp_path)
    start = ProcessStart(("python",), str(tmp_path), {})

    def stop() -> NoReturn:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        Restarts(start, lambda: "").again(None, "", stop)
    assert done == []


def test_a_restart_may_be_taken_back() -> None:
    start = ProcessStart((), "", {"LINGVO_PIPE_RESTARTS": "1 a"})
    restarts = Restarts(start, lambda: "a")
    restarts.discount()
    assert restarts.in_a_row == 0
    restarts.discount()
    assert restarts.in_a_row == 0
