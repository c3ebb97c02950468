"""Runs workers: processes of their own, so that no measurement sees another's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lingvo_pipe.pipeline.devices.own_port import unused_ports
from tools.benchmarks.exchange import Report, Request, merge
from tools.benchmarks.process_group import ProcessGroup, process_group

# The folder that the workers' modules are imported from.
_ROOT = Path(__file__).absolute().parents[2]

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


def run_workers(requests: Sequence[Request], torch_python: str | None) -> list[Report]:
    """Measures configurations: one after the other starts, then each has its turns.

    Args:
        requests: what to measure, the same number of steps of each.
        torch_python: the Python to run PyTorch with, if that is measured.

    Raises:
        RuntimeError: if a worker fails, or takes too long.
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
    """The workers of a configuration, ready for their next turn."""
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
            lent = stack.enter_context(_lent_devices(request))
            workers = json.dumps(lent)
            commands = [
                _command(
                    sys.executable, "lingvo_pipe_worker", request.to_json(), workers
                )
            ]
        group = stack.enter_context(_running(request, commands))
        group.answers()
        yield group


@contextlib.contextmanager
def _lent_devices(request: Request) -> Iterator[dict[str, int]]:
    """Processes with a core each for the stages: their ids by address, if any are."""
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
    """Without GPUs, and with what each Python has of its own."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # The processes of a pipeline are all on this machine.
    return inherited | {"CUDA_VISIBLE_DEVICES": "-1", "GLOO_SOCKET_IFNAME": "lo"}
