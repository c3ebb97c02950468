"""Runs workers: processes of their own, so that no measurement sees another's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tools.benchmarks.exchange import Report, Request, merge

# The folder that the workers' modules are imported from.
_ROOT = Path(__file__).absolute().parents[2]

_TIME_LIMIT_SECONDS = 900
_POLL_SECONDS = 0.05

_NEEDED_FOR_TORCH = "import numpy, torch.distributed.pipelining"


def has_torch(python: str) -> bool:
    """Whether this Python can run the PyTorch worker."""
    try:
        imported = subprocess.run(
            [python, "-c", _NEEDED_FOR_TORCH],
            cwd=_ROOT,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return imported.returncode == 0


def run_workers(request: Request, torch_python: str | None) -> Report:
    """Measures a configuration.

    Args:
        request: what to measure.
        torch_python: the Python to run PyTorch with, if that is measured.

    Raises:
        RuntimeError: if a worker fails, or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        if request.configuration.system == "torch":
            assert torch_python is not None
            commands = [
                _command(torch_python, "torch_worker", request, str(rank), folder)
                for rank in range(request.configuration.num_devices)
            ]
        else:
            commands = [_command(sys.executable, "lingvo_pipe_worker", request)]
        outputs = _run_all(commands, Path(folder), request.configuration.name)
    return merge([Report.from_json(output.splitlines()[-1]) for output in outputs])


def _command(python: str, worker: str, request: Request, *args: str) -> list[str]:
    return [python, "-m", f"tools.benchmarks.{worker}", request.to_json(), *args]


def _environment() -> dict[str, str]:
    """Without GPUs, and with what each Python has of its own."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # The processes of a pipeline are all on this machine.
    return inherited | {"CUDA_VISIBLE_DEVICES": "-1", "GLOO_SOCKET_IFNAME": "lo"}


def _run_all(commands: Sequence[list[str]], folder: Path, name: str) -> list[str]:
    """What the commands write, run at the same time; when one fails all are ended."""
    logs = [(folder / f"errors{i}").open("w+") for i in range(len(commands))]
    outputs = [(folder / f"output{i}").open("w+") for i in range(len(commands))]
    processes: list[subprocess.Popen[str]] = []
    try:
        for command, output, log in zip(commands, outputs, logs, strict=True):
            processes.append(_start(command, output, log))
        _wait(processes)
        failed = [i for i, process in enumerate(processes) if process.poll() != 0]
        if failed:
            raise RuntimeError(
                f"Measuring {name} failed or took more than {_TIME_LIMIT_SECONDS} s:\n"
                + "\n".join(_text(logs[i])[-4000:] for i in failed)
            )
        return [_text(output) for output in outputs]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for file in (*outputs, *logs):
            file.close()


def _start(command: list[str], output: IO[str], log: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=_ROOT, env=_environment(), stdout=output, stderr=log, text=True
    )


def _wait(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Until all have ended, or one has failed, or the time is over."""
    end = time.monotonic() + _TIME_LIMIT_SECONDS
    while time.monotonic() < end:
        states = [process.poll() for process in processes]
        if None not in states or any(states):
            return
        time.sleep(_POLL_SECONDS)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
