"""Workers take turns; when one fails, its log is shown and all are ended."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.benchmarks import worker_process
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request, to_json
from tools.benchmarks.standard_configurations import quick_configurations
from tools.benchmarks.worker_process import ProcessGroup, process_group, run_workers

REPORT = Report(1.0, [1.0, 1.0], None, 0.5, 0.0)
GROUP, *_ = quick_configurations(2)
IN_PROCESS = next(c for c in GROUP if c.is_predicted)
ON_WORKERS = IN_PROCESS.on_workers()
IN_TORCH = next(c for c in GROUP if c.system == "torch" and c.num_devices == 2)
PLAIN = next(c for c in GROUP if c.system == "tensorflow")


class Log:
    """A stand-in for processes that records when they are started, run and ended.

    Attributes:
        events: pairs of an event and the first process's module with its name.
        commands: commands of all processes.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.commands: list[list[str]] = []

    @contextlib.contextmanager
    def process_group(self, name: str, commands: Sequence[list[str]]) -> Iterator[Any]:
        self.commands += commands
        packages = ("tools.benchmarks.", "lingvo_pipe.tools.")
        modules = (word for word in commands[0] if word.startswith(packages))
        module = next(modules).removeprefix("tools.benchmarks.")
        kind = f"{module} {name.rpartition(' ')[2]}"

        def record(event: str) -> list[str]:
            self.events.append((event, kind))
            loss = [0.5] + [None] * (len(commands) - 1)
            return [
                to_json(Report(1.0, [1.0, 1.0], None, loss[i], 0.0))
                for i in range(len(commands))
            ]

        yield SimpleNamespace(
            pids=range(100, 100 + len(commands)),
            answers=lambda: record("start"),
            turn=lambda: record("turn"),
        )
        self.events.append(("end", kind))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(worker_process, "process_group", log.process_group)
    return log


def _run(configurations: Sequence[Configuration]) -> list[Report]:
    requests = [Request(c, 2, False, (3, 5)) for c in configurations]
    return run_workers(requests, "torch_python")


def test_configurations_run_their_steps_in_turns(log: Log) -> None:
    reports = _run([IN_PROCESS, ON_WORKERS, IN_TORCH, PLAIN])
    assert reports == [REPORT] * 4
    turns = [
        ("turn", "lingvo_pipe_worker in-process"),
        ("turn", "lingvo_pipe_worker workers"),
        ("turn", "torch_worker float32"),
        ("turn", "lingvo_pipe_worker float32"),
    ]
    assert log.events == [
        ("start", "lingvo_pipe_worker in-process"),
        ("start", "lingvo_pipe.tools.bound_process workers"),
        ("start", "lingvo_pipe_worker workers"),
        ("start", "torch_worker float32"),
        ("start", "lingvo_pipe_worker float32"),
        *turns * 3,  # Two steps, and the report.
        ("end", "lingvo_pipe_worker float32"),
        ("end", "torch_worker float32"),
        ("end", "lingvo_pipe_worker workers"),
        ("end", "lingvo_pipe.tools.bound_process workers"),
        ("end", "lingvo_pipe_worker in-process"),
    ]


def test_each_stage_on_a_worker_has_its_core(log: Log) -> None:
    _run([ON_WORKERS])
    *stages, trainer = log.commands
    cluster = stages[0][-3]
    address0, address1 = cluster.removeprefix("--cluster=worker=").split(",")
    assert address0 != address1
    for i, (core, command) in enumerate(zip("35", stages, strict=True)):
        assert command[4] == core
        assert command[-3:] == [cluster, "--job=worker", f"--task={i}"]
    assert trainer[-1] == f'{{"{address0}": 100, "{address1}": 101}}'


ANSWERS = """
    import os, sys
    from tools.benchmarks.exchange import Turns
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
    return process_group("toy", commands)


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_each_answers_once_a_turn() -> None:
    with _group(ANSWERS, ANSWERS) as group:
        assert group.answers() == ["ready\n", "ready\n"]
        assert group.turn() == ["ready\n", "ready\n"]
        assert group.turn() == ["answer 0\n", "answer 1\n"]
        pids = group.pids
    assert all(map(_is_gone, pids))


def test_a_failure_is_reported_with_its_log() -> None:
    with _group(ANSWERS, FAILS) as group:
        group.answers()
        with pytest.raises(RuntimeError, match=r"(?s)\btoy\b.*RuntimeError: broken$"):
            group.turn()
        pids = group.pids
    assert all(map(_is_gone, pids))


def test_a_process_that_ended_early_is_a_failure() -> None:
    with _group("") as group:
        os.waitid(os.P_PID, group.pids[0], os.WEXITED | os.WNOWAIT)
        with pytest.raises(RuntimeError, match=r"\btoy\b.*\b900 s\b"):
            group.turn()


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_TIME_LIMIT_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"\btoy\b.*\b0\.5 s\b"), _group(SLEEPS) as g:
        g.answers()
    assert 0.5 < time.monotonic() - start < 60
