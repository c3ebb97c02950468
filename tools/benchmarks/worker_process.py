"""Workers: separate processes, so that no measurement disturbs another."""

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
from typing import IO, NamedTuple

from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tools.benchmarks.exchange import Report, Request, merge

# The folder that the workers' modules are imported from.
_ROOT = Path(__file__).absolute().parents[2]
_TORCH_IMPORTS = "import numpy, torch.distributed.pipelining"
_TIME_LIMIT_SECONDS = 900
_MAX_LOG_CHARACTERS = 4000


def has_torch(python: str) -> bool:
    """Returns whether this Python can run the PyTorch worker."""
    try:
        imported = subprocess.run(
            [python, "-c", _TORCH_IMPORTS],
            cwd=_ROOT,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return imported.returncode == 0


def run_workers(requests: Sequence[Request], torch_python: str | None) -> list[Report]:
    """Starts configurations one after the other, then measures them in turns.

    The requests have equal numbers of steps. `torch_python` runs PyTorch.

    Raises:
        RuntimeError: if a worker fails or takes too long.
    """
    with contextlib.ExitStack() as stack:
        groups = [
            stack.enter_context(_started(request, torch_python)) for request in requests
        ]
        for _ in range(requests[0].num_steps):
            for group in groups:
                group.turn()
        return [merge([Report.from_json(x) for x in group.turn()]) for group in groups]


@contextlib.contextmanager
def _started(request: Request, torch_python: str | None) -> Iterator[ProcessGroup]:
    """Starts the workers of a configuration, and waits until they are ready."""
    configuration = request.configuration
    with contextlib.ExitStack() as stack:
        if configuration.system == "torch":
            assert torch_python is not None
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            commands = [
                _command(torch_python, "torch_worker", request.to_json(), rank, folder)
                for rank in range(configuration.num_devices)
            ]
        else:
            pids = json.dumps(stack.enter_context(_stage_workers(request)))
            worker = "lingvo_pipe_worker"
            commands = [_command(sys.executable, worker, request.to_json(), pids)]
        group = stack.enter_context(_running(request, commands))
        group.answers()
        yield group


@contextlib.contextmanager
def _stage_workers(request: Request) -> Iterator[dict[str, int]]:
    """Runs a process with its own core for each stage, if stages are on workers.

    Yields:
        Process ids by address.
    """
    configuration, cores = request.configuration, request.cores
    if configuration.placement != "workers":
        yield {}
        return
    addresses = [
        f"localhost:{port}" for port in unused_ports(configuration.num_devices)
    ]
    commands = [
        _command(sys.executable, "stage_worker", cores[i % len(cores)], i, *addresses)
        for i in range(configuration.num_devices)
    ]
    with _running(request, commands) as group:
        group.answers()
        yield dict(zip(addresses, group.pids, strict=True))


def _running(
    request: Request, commands: Sequence[list[str]]
) -> contextlib.AbstractContextManager[ProcessGroup]:
    return process_group(request.configuration.name, commands, _environment(), _ROOT)


def _command(python: str, worker: str, *args: object) -> list[str]:
    return [python, "-m", f"tools.benchmarks.{worker}", *map(str, args)]


def _environment() -> dict[str, str]:
    """Returns an environment without GPUs, and with each Python's own packages."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # All processes of a pipeline are on this machine.
    return inherited | {"CUDA_VISIBLE_DEVICES": "-1", "GLOO_SOCKET_IFNAME": "lo"}


class _Member(NamedTuple):
    process: subprocess.Popen[str]
    stdin: int
    answers: IO[str]
    log: IO[str]


class ProcessGroup:
    """Running processes, each of which writes one line at its start and per turn.

    If one fails or takes too long, the others are of no use.
    """

    def __init__(self, name: str, members: Sequence[_Member]):
        self._name = name
        self._members = members

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [member.process.pid for member in self._members]

    def turn(self) -> list[str]:
        """Runs a turn of all processes; returns their answers."""
        for member in self._members:
            # For a process that has ended, `answers` reports the missing line.
            with contextlib.suppress(BrokenPipeError):
                os.write(member.stdin, b"\n")
        return self.answers()

    def answers(self) -> list[str]:
        """Returns the next line of each process.

        Raises:
            RuntimeError: if one ends without a line, or the time limit is over.
        """
        end = time.monotonic() + _TIME_LIMIT_SECONDS
        found: dict[IO[str], str] = {}
        while len(found) < len(self._members):
            missing = [m.answers for m in self._members if m.answers not in found]
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select(missing, [], [], left)
            found |= {answers: answers.readline() for answers in ready}
            if not ready or "" in found.values():
                raise self._failure(found)
        return [found[member.answers] for member in self._members]

    def _failure(self, found: Mapping[IO[str], str]) -> RuntimeError:
        logs = []
        for member in self._members:
            if not found.get(member.answers):
                member.log.seek(0)
                logs.append(member.log.read()[-_MAX_LOG_CHARACTERS:])
        return RuntimeError(
            f"Measuring {self._name} failed or took more than {_TIME_LIMIT_SECONDS} "
            "s:\n" + "\n".join(logs)
        )


@contextlib.contextmanager
def process_group(
    name: str,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    folder: Path,
) -> Iterator[ProcessGroup]:
    """Runs commands while in the context; does not read the first answers."""
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(_member(command, environment, folder))
            for command in commands
        ]
        yield ProcessGroup(name, members)


@contextlib.contextmanager
def _member(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[_Member]:
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _Member(process, process.stdin.fileno(), process.stdout, log)
        finally:
            process.kill()
