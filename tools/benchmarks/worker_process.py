"""Workers: separate processes, so that measurements do not disturb one another."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from lingvo_pipe.tools.bound_process import bound_python
from tools.benchmarks.exchange import Report, Request, merge, to_json

# The folder that the workers' modules are imported from.
_ROOT = Path(__file__).absolute().parents[2]
# Another Python's own packages come before those installed beside the modules.
_RUN_MODULE = (
    "import runpy, sys; _, root, module, *sys.argv[1:] = sys.argv; "
    "sys.path = [*filter(None, sys.path), root]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
# Programs that show what a Python can run of PyTorch's rows.
IMPORTS_TORCH = (
    "import lazy_loader, numpy; "
    "from torch.distributed.pipelining import ScheduleZBVZeroBubble"
)
COMPILES_TORCH = "import torch; torch.compile(lambda x: x + 1)(torch.ones(2))"
_TIME_LIMIT_SECONDS = 900
_MAX_LOG_CHARACTERS = 4000


def can_run(python: str, program: str) -> bool:
    """Returns whether a Python runs a program without an error."""
    with contextlib.suppress(OSError):
        command = [python, "-c", program]
        run = subprocess.run(command, env=_environment(), capture_output=True)
        return run.returncode == 0
    return False


def run_workers(requests: Sequence[Request], torch_python: str | None) -> list[Report]:
    """Starts a configuration for each request, and measures their steps in turns.

    The requests have equal numbers of steps. `torch_python` runs PyTorch.

    Raises:
        RuntimeError: if a worker fails or takes too long.
    """
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(_started(x, torch_python)) for x in requests]
        for _ in range(requests[0].num_steps):
            for group in groups:
                group.turn()
        last = [map(json.loads, group.turn()) for group in groups]
        return [merge([Report(**fields) for fields in answers]) for answers in last]


@contextlib.contextmanager
def _started(request: Request, torch_python: str | None) -> Iterator[ProcessGroup]:
    configuration = request.configuration
    with contextlib.ExitStack() as stack:
        if configuration.system == "torch":
            assert torch_python is not None
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            commands = [
                _command(torch_python, "torch_worker", to_json(request), rank, folder)
                for rank in range(configuration.num_devices)
            ]
        else:
            pids = json.dumps(stack.enter_context(_stage_workers(request)))
            worker = "lingvo_pipe_worker"
            commands = [_command(sys.executable, worker, to_json(request), pids)]
        group = stack.enter_context(process_group(configuration.name, commands))
        group.answers()
        yield group


@contextlib.contextmanager
def _stage_workers(request: Request) -> Iterator[dict[str, int]]:
    """Runs a worker for each device, and yields the workers' process ids by address."""
    configuration, cores = request.configuration, request.cores
    if configuration.placement != "workers":
        yield {}
        return
    ports = unused_ports(configuration.num_devices)
    addresses = [f"localhost:{port}" for port in ports]
    trainer = ("-m", "lingvo_pipe.trainer", f"--cluster=worker={','.join(addresses)}")
    commands = [
        bound_python([cores[i % len(cores)]], *trainer, "--job=worker", f"--task={i}")
        for i in range(configuration.num_devices)
    ]
    with process_group(configuration.name, commands) as group:
        group.answers()
        yield dict(zip(addresses, group.pids, strict=True))


def _command(python: str, worker: str, *args: object) -> list[str]:
    module = f"tools.benchmarks.{worker}"
    return [python, "-c", _RUN_MODULE, str(_ROOT), module, *map(str, args)]


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # All processes of a pipeline are on this machine.
    return inherited | {"CUDA_VISIBLE_DEVICES": "-1", "GLOO_SOCKET_IFNAME": "lo"}


class ProcessGroup:
    """Running processes, each of which writes one line at its start and per turn.

    Their standard input and output are pipes. They write errors to the logs.
    """

    def __init__(self, name: str, logs: Mapping[subprocess.Popen[str], IO[str]]):
        self._name = name
        self.pids = [process.pid for process in logs]
        self._inputs = [process.stdin for process in logs if process.stdin]
        self._logs = {x.stdout: log for x, log in logs.items() if x.stdout}

    def turn(self) -> list[str]:
        """Runs a turn of all processes, and returns their answers."""
        for stdin in self._inputs:
            # For a process that has ended, `answers` reports the missing line.
            with contextlib.suppress(BrokenPipeError):
                os.write(stdin.fileno(), b"\n")
        return self.answers()

    def answers(self) -> list[str]:
        """Returns the next line of each process.

        Raises:
            RuntimeError: if a process ends without a line, or the time limit is over.
        """
        end = time.monotonic() + _TIME_LIMIT_SECONDS
        lines: dict[IO[str], str] = {}
        while missing := [output for output in self._logs if output not in lines]:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select(missing, [], [], left)
            lines |= {output: output.readline() for output in ready}
            if not ready or "" in lines.values():
                raise self._failure(lines)
        return [lines[output] for output in self._logs]

    def _failure(self, lines: Mapping[IO[str], str]) -> RuntimeError:
        texts = []
        for output, log in self._logs.items():
            if not lines.get(output):
                log.seek(0)
                texts.append(log.read()[-_MAX_LOG_CHARACTERS:])
        return RuntimeError(
            f"Measuring {self._name} failed or took more than {_TIME_LIMIT_SECONDS} "
            "s:\n" + "\n".join(texts)
        )


@contextlib.contextmanager
def process_group(
    name: str, commands: Sequence[Sequence[str]]
) -> Iterator[ProcessGroup]:
    """Runs commands while in the context, and yields a group with unread answers."""
    with contextlib.ExitStack() as stack:
        logs = {}
        for command in commands:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            logs[stack.enter_context(process)] = log
            stack.callback(process.kill)
        yield ProcessGroup(name, logs)
