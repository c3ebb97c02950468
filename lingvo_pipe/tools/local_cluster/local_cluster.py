"""Trains on worker processes of this machine, and keeps them running.

    lingvo_pipe cluster --workers=2 \
        --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits

Starts workers and a trainer that uses them. Each worker has its own core if there are
enough. All flags but --workers are the trainer's. Processes that hang are killed.
Killed processes, and workers that end, are restarted. The run resumes from its last
checkpoint. After Ctrl-C the trainer saves its step and ends. A second Ctrl-C ends all
processes at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.programs import flag_parser, program
from lingvo_pipe.fault_tolerance.restarts import progress_of
from lingvo_pipe.fault_tolerance.worker_status import WorkerQuestions
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from lingvo_pipe.tools.local_cluster.member import Member, Worker
from lingvo_pipe.tools.local_cluster.supervisor import Supervisor

_ROOT = Path(__file__).absolute().parents[3]
_TRAINER = ("-m", "lingvo_pipe.trainer")
_HOST = "127.0.0.1"


def main(arguments: Sequence[str]) -> int:
    """Runs a cluster, and returns the exit code."""
    with program(["cluster"], OSError):
        options, flags = _flags(arguments)
        ports = unused_ports(options.workers)
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
            path=" and ".join(wrong),
            expected="nothing, because a local cluster starts its own workers",
            hint="Use lingvo_pipe train for another cluster.",
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
        own_cores = cores[i : i + 1] if has_enough else []
        questions = WorkerQuestions([address])
        workers.append(Worker(f"worker:{i}", command, own_cores, questions, timeout))
        workers[-1].watch()
    logdir = os.path.expanduser(options.logdir or "")
    return Supervisor(
        Member("trainer", [*_TRAINER, *flags, cluster]),
        workers,
        timeout,
        progress=lambda: progress_of(options.job, logdir),
        log=lambda line: print(f"local_cluster: {line}", flush=True),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
