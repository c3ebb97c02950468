"""Processes answer in turn; when one fails, its log is shown and all are ended."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import tools.benchmarks
from tools.benchmarks import process_group
from tools.benchmarks.process_group import ProcessGroup

ROOT = Path(tools.benchmarks.__file__).parents[2]

ANSWERS = """
    import os, sys
    from tools.benchmarks.turns import Turns
    turns = Turns()
    print("a library writes")
    os.system("echo a program writes")
    turns.wait()
    turns.wait()
    turns.answer("answer " + sys.argv[1])
"""
FAILS = """
    import sys
    print("ready", flush=True)
    sys.stdin.readline()
    raise RuntimeError("broken")
"""
SLEEPS = """
    import time
    time.sleep(600)
"""


def _group(*scripts: str) -> AbstractContextManager[ProcessGroup]:
    commands = [
        [sys.executable, "-c", textwrap.dedent(script), str(i)]
        for i, script in enumerate(scripts)
    ]
    return process_group.process_group("toy", commands, dict(os.environ), ROOT)


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_each_answers_once_a_turn() -> None:
    with _group(ANSWERS, ANSWERS) as group:
        assert group.answers() == ["ready\n", "ready\n"]
        assert group.turn() == ["ready\n", "ready\n"]
        assert group.turn() == ["answer 0\n", "answer 1\n"]
        pids = group.pids
    assert all(map(_is_gone, pids))


def test_a_failure_is_told_with_its_log() -> None:
    with _group(ANSWERS, FAILS) as group:
        group.answers()
        with pytest.raises(RuntimeError, match=r"(?s)\btoy\b.*RuntimeError: broken$"):
            group.turn()
        pids = group.pids
    assert all(map(_is_gone, pids))


def test_one_that_ended_unasked_is_a_failure() -> None:
    with _group("") as group:
        os.waitid(os.P_PID, group.pids[0], os.WEXITED | os.WNOWAIT)
        with pytest.raises(RuntimeError, match=r"\btoy\b.*\b900 s\b"):
            group.turn()


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_TIME_LIMIT_SECONDS", 0.5)
    start = time.monotonic()
    with (
        pytest.raises(RuntimeError, match=r"\btoy\b.*\b0\.5 s\b"),
        _group(SLEEPS) as g,
    ):
        g.answers()
    assert 0.5 < time.monotonic() - start < 60
