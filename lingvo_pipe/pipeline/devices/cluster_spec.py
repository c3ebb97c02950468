"""Where the tasks are: `worker=host1:2222,host2:2222`, as in Lingvo. Pure.

A trainer needs no address of its own, unless it is to listen at a certain one, or to be
a task like the others: `trainer=host0:2222@worker=host1:2222,host2:2222`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

TRAINER_JOB = "trainer"
HELP = f"Write {WORKER_JOB}=host1:port1,host2:port2, the same for all tasks."
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/,=@\[\]]+):(\d+)", re.IGNORECASE)
_MAX_PORT = 65535


@dataclass(frozen=True)
class Cluster:
    """Who works together.

    Attributes:
        workers: addresses of worker 0, 1, ..., each `host:port`.
        trainer: the trainer's address, if it is a task like the others, whose devices
            come before the workers' where a number of devices is asked for; None: it
            takes any port, and its devices are used if they are named.
        listens_on_all: whether tasks answer at all addresses of their machines, and
            not only at those given here.
    """

    workers: tuple[str, ...]
    trainer: str | None = None
    listens_on_all: bool = False


def parse_cluster_spec(text: str) -> Cluster:
    """Reads a cluster's description.

    Raises:
        ValueError: if it describes anything but workers and their trainer, or names an
            address that is none or stands twice.
    """
    jobs: dict[str, list[str]] = {}
    for part in text.strip().split("@"):
        job, _, rest = part.partition("=")
        if job not in (WORKER_JOB, TRAINER_JOB) or job in jobs:
            raise ValueError(
                f"--cluster must name the job {WORKER_JOB!r}, and nothing else but the "
                f"{TRAINER_JOB!r}, each once; got {text!r}."
                f"{did_you_mean(job, [WORKER_JOB, TRAINER_JOB])} {HELP}"
            )
        jobs[job] = [address.strip() for address in rest.split(",")]
    return checked_cluster(jobs, "--cluster", HELP)


def checked_cluster(
    jobs: dict[str, list[str]], where: str, remedy: str = HELP
) -> Cluster:
    """Makes a cluster of the addresses of its jobs.

    Args:
        jobs: addresses of the workers, and of at most one trainer, by job.
        where: what says so, for errors.
        remedy: what to write instead, for errors.

    Raises:
        ValueError: if there is no worker, or more than one trainer, or an address is
            none or stands twice.
    """
    workers, trainers = jobs.get(WORKER_JOB, []), jobs.get(TRAINER_JOB, [])
    if not workers:
        raise ValueError(
            f"A cluster must have workers; {where} names none, but "
            f"{sorted(jobs) or 'nothing'}. {remedy}"
        )
    if len(trainers) > 1:
        raise ValueError(
            f"A cluster must have one trainer at most; {where} names {trainers}. "
            f"{remedy}"
        )
    every = [*trainers, *workers]
    wrong = [address for address in every if not _is_address(address)]
    if wrong:
        raise ValueError(
            f"Tasks must be given as host:port; {wrong} in {where} are not. {remedy}"
        )
    twice = sorted({a for a in every if every.count(a) > 1})
    if twice:
        raise ValueError(
            f"Each task needs an address of its own; {twice} stand twice in {where}. "
            f"{remedy}"
        )
    return Cluster(tuple(workers), trainers[0] if trainers else None)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` -> host and port; `[::1]:2222` -> `::1` and 2222."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def checked_task(task: int, workers: Sequence[str]) -> int:
    """The number of a worker; raises ValueError if there is no such worker."""
    if not 0 <= task < len(workers):
        raise ValueError(
            f"--task must be one of the {len(workers)} workers in --cluster, "
            f"0..{len(workers) - 1}; got {task}."
        )
    return task


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[2]) <= _MAX_PORT
