"""What is measured together takes turns; stages on workers have a core each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tools.benchmarks import worker_process
from tools.benchmarks.configuration import Configuration, quick_configurations
from tools.benchmarks.exchange import Report, Request
from tools.benchmarks.worker_process import run_workers

REPORT = Report(1.0, [1.0, 1.0], None, 0.5, 0.0)
GROUP, _ = quick_configurations(2)
IN_PROCESS = next(c for c in GROUP if c.is_predicted)
ON_WORKERS = IN_PROCESS.on_workers()
IN_TORCH = IN_PROCESS.in_torch()


class Log:
    """Stands in for processes, and notes which are started, run and ended.

    Attributes:
        events: (what happens, first process's command after its module's name).
        commands: without their Python.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.commands: list[list[str]] = []

    @contextlib.contextmanager
    def process_group(
        self, name: str, commands: Sequence[list[str]], *_: object
    ) -> Iterator[Any]:
        self.commands += commands
        module = commands[0][2].removeprefix("tools.benchmarks.")
        kind = f"{module} {name.rpartition(' ')[2]}"

        def note(event: str) -> list[str]:
            self.events.append((event, kind))
            loss = [0.5] + [None] * (len(commands) - 1)
            return [
                Report(1.0, [1.0, 1.0], None, loss[i], 0.0).to_json()
                for i in range(len(commands))
            ]

        yield SimpleNamespace(
            pids=range(100, 100 + len(commands)),
            answers=lambda: note("start"),
            turn=lambda: note("turn"),
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


def test_each_has_a_step_in_turn(log: Log) -> None:
    reports = _run([IN_PROCESS, ON_WORKERS, IN_TORCH])
    assert reports == [REPORT] * 3
    turns = [
        ("turn", "lingvo_pipe_worker in-process"),
        ("turn", "lingvo_pipe_worker workers"),
        ("turn", "torch_worker always"),
    ]
    assert log.events == [
        ("start", "lingvo_pipe_worker in-process"),
        ("start", "stage_worker workers"),
        ("start", "lingvo_pipe_worker workers"),
        ("start", "torch_worker always"),
        *turns * 3,  # Two steps, and the report.
        ("end", "torch_worker always"),
        ("end", "lingvo_pipe_worker workers"),
        ("end", "stage_worker workers"),
        ("end", "lingvo_pipe_worker in-process"),
    ]


def test_each_stage_on_a_worker_has_its_core(log: Log) -> None:
    _run([ON_WORKERS])
    *stages, trainer = [command[2:] for command in log.commands]
    (address0, address1) = stages[0][-2:]
    assert address0 != address1
    assert stages == [
        ["tools.benchmarks.stage_worker", "3", "0", address0, address1],
        ["tools.benchmarks.stage_worker", "5", "1", address0, address1],
    ]
    assert trainer[-1] == f'{{"{address0}": 100, "{address1}": 101}}'
