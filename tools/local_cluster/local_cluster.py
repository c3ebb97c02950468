"""Trains on worker processes of this machine, and keeps them running.

    tools/bazel run //tools:local_cluster -- --workers=2 \
        --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits

Starts workers, each on a core of its own if there are enough, and a trainer on them.
All flags but --workers are the trainer's. What is killed is started again, what hangs
is killed; the run goes on from its last checkpoint. Ctrl-C has the trainer save the
step it is in and end, a second one ends all at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.failures.progress import progress_of
from lingvo_pipe.failures.worker_answers import WorkerAnswers
from tools.local_cluster.free_ports import free_ports
from tools.local_cluster.member import Member
from tools.local_cluster.pulse import Pulse
from tools.local_cluster.supervisor import Supervisor

_ROOT = Path(__file__).absolute().parents[2]
_TRAINER = ("-m", "lingvo_pipe.trainer")
_HOST = "127.0.0.1"


def main(arguments: Sequence[str]) -> int:
    """Runs a cluster; returns the exit code."""
    try:
        own, flags = _flags(arguments)
        ports = free_ports(own.workers)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # Processes are started where this one is, wherever they then go to.
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return _supervisor(own, flags, [f"{_HOST}:{port}" for port in ports]).run()


def _flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own flags, or those that concern us too; and the trainer's."""
    parser = argparse.ArgumentParser(
        prog="local_cluster",
        description=__doc__,
        epilog="--helpshort of //:trainer shows the trainer's.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=int, default=2, help="their number (2)")
    own, flags = parser.parse_known_args(arguments)
    ours = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in ("devices", "logdir", "cluster", "cluster_spec", "task"):
        ours.add_argument(f"--{name}")
    ours.add_argument("--job", default="trainer")
    ours.add_argument("--worker_timeout_seconds", type=float, default=30.0)
    read, _ = ours.parse_known_args(flags)
    _check(own, read)
    if read.devices is None:
        devices = ",".join(f"worker:{i}/cpu:0" for i in range(own.workers))
        flags = [*flags, f"--devices={devices}"]
    return argparse.Namespace(**vars(own), **vars(read)), flags


def _check(own: argparse.Namespace, read: argparse.Namespace) -> None:
    if own.workers < 1:
        raise ValueError(f"--workers must be at least 1; got {own.workers}.")
    given = [n for n in ("cluster", "cluster_spec", "task") if getattr(read, n)]
    if given or read.job == "worker":
        wrong = [f"--{name}" for name in given] or ["--job=worker"]
        raise ValueError(
            "A local cluster starts workers of its own, so it takes no "
            f"{' and no '.join(wrong)}. Leave it out, or use //:trainer."
        )


def _supervisor(
    own: argparse.Namespace, flags: Sequence[str], addresses: Sequence[str]
) -> Supervisor:
    cluster = f"--cluster=worker={','.join(addresses)}"
    cores = sorted(os.sched_getaffinity(0))
    has_enough = len(cores) >= own.workers
    timeout, workers = own.worker_timeout_seconds, []
    for i, address in enumerate(addresses):
        command = [*_TRAINER, "--job=worker", f"--task={i}", cluster]
        pulse = Pulse(WorkerAnswers([address]), timeout)
        pulse.watch()
        its_cores = cores[i : i + 1] if has_enough else []
        workers.append((Member(f"worker:{i}", command, its_cores), pulse))
    folder = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    logdir = os.path.join(folder, os.path.expanduser(own.logdir or ""))
    return Supervisor(
        Member("trainer", [*_TRAINER, *flags, cluster]),
        workers,
        timeout,
        progress=lambda: progress_of(own.job, logdir),
        say=lambda line: print(f"local_cluster: {line}", flush=True),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
