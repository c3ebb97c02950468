"""Trains on worker processes of this machine, and keeps them running.

    lingvo_pipe cluster --workers=2 \
        --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits

Starts workers, each on a core of its own if there are enough, and a trainer on them.
All flags but --workers are the trainer's. It restarts processes that die, and kills
those that hang. The run resumes from its last checkpoint. After Ctrl-C the trainer
saves its step and ends. A second Ctrl-C ends all at once.
"""

import argparse
import contextlib
import os
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.fault_tolerance.restarts import progress_of
from lingvo_pipe.fault_tolerance.worker_status import WorkerQuestions
from lingvo_pipe.tools.local_cluster.heartbeat import WorkerHeartbeat
from lingvo_pipe.tools.local_cluster.member import Member
from lingvo_pipe.tools.local_cluster.supervisor import Supervisor
from lingvo_pipe.tools.programs import flag_parser

_ROOT = Path(__file__).absolute().parents[3]
_TRAINER = ("-m", "lingvo_pipe.trainer")
_HOST = "127.0.0.1"
_SYSTEM_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT, _END_PORT = 10_000, 65_536
_MAX_TRIES = 1_000


def main(arguments: Sequence[str]) -> int:
    """Runs a cluster, and returns the exit code."""
    try:
        options, flags = _flags(arguments)
        ports = free_ports(options.workers)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # Processes start in this folder, and may change to another.
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return _supervisor(options, flags, [f"{_HOST}:{port}" for port in ports]).run()


def _flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = flag_parser("lingvo_pipe cluster", __doc__)
    parser.epilog = "lingvo_pipe train --help shows the trainer's."
    parser.add_argument("--workers", type=int, default=2, help="number of workers (2)")
    options, flags = parser.parse_known_args(arguments)
    shared = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("devices", "logdir", "cluster", "cluster_spec", "task"):
        shared.add_argument(f"--{name}")
    shared.add_argument("--job", default="trainer")
    shared.add_argument("--worker_timeout_seconds", type=float, default=30.0)
    shared.parse_known_args(flags, options)
    if options.workers < 1:
        raise UserValueError(
            path="--workers", expected="at least 1", got=options.workers
        )
    refused = [n for n in ("cluster", "cluster_spec", "task") if getattr(options, n)]
    if refused or options.job == "worker":
        wrong = [f"--{name}" for name in refused] or ["--job=worker"]
        raise UserValueError(
            "A local cluster starts its own workers, so it takes no "
            f"{' and no '.join(wrong)}. Leave it out, or use lingvo_pipe train."
        )
    if options.devices is None:
        devices = ",".join(f"worker:{i}/cpu:0" for i in range(options.workers))
        flags = [*flags, f"--devices={devices}"]
    return options, flags


def _supervisor(
    options: argparse.Namespace, flags: Sequence[str], addresses: Sequence[str]
) -> Supervisor:
    cluster = f"--cluster=worker={','.join(addresses)}"
    cores = sorted(os.sched_getaffinity(0))
    has_enough = len(cores) >= options.workers
    timeout, workers = options.worker_timeout_seconds, []
    for i, address in enumerate(addresses):
        command = [*_TRAINER, "--job=worker", f"--task={i}", cluster]
        worker = Member(f"worker:{i}", command, cores[i : i + 1] if has_enough else [])
        heartbeat = WorkerHeartbeat(WorkerQuestions([address]), timeout)
        heartbeat.watch()
        workers.append((worker, heartbeat))
    folder = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    logdir = os.path.join(folder, os.path.expanduser(options.logdir or ""))
    return Supervisor(
        Member("trainer", [*_TRAINER, *flags, cluster]),
        workers,
        timeout,
        progress=lambda: progress_of(options.job, logdir),
        log=lambda line: print(f"local_cluster: {line}", flush=True),
    )


def free_ports(number: int) -> list[int]:
    """Returns free ports, if possible outside the range that the system assigns.

    Raises:
        OSError: there are too few.
    """
    first_system = max(_FIRST_PORT, int(_SYSTEM_PORTS.read_text().split()[0]))
    candidates = [
        port
        for ports in (range(_FIRST_PORT, first_system), range(first_system, _END_PORT))
        for port in random.sample(ports, min(_MAX_TRIES, len(ports)))
    ]
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates:
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("", port))
                free.append(port)
            if len(free) == number:
                return free
    raise OSError(
        f"This machine needs {number} free ports between {_FIRST_PORT} and "
        f"{_END_PORT}; {len(free)} were found."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
