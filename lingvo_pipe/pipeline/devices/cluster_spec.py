"""Cluster specs: the tasks' addresses as text, `worker=host1:2222,host2:2222`.

The text has Lingvo's form. A trainer has an address only if it must listen at that
address, or if it lends its own devices:
`trainer=host0:2222@worker=host1:2222,host2:2222`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

TRAINER_JOB = "trainer"
HELP = f"Write {WORKER_JOB}=host1:port1,host2:port2, the same for all tasks."
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/,=@\[\]]+):(\d+)", re.IGNORECASE)
_MAX_PORT = 65535


@dataclass(frozen=True)
class Cluster:
    """The tasks of a job, each with an address `host:port`.

    A trainer with an address lends its own devices too. If the user gives a number of
    devices, the trainer's devices come before the workers' devices. A trainer without
    an address takes any port, and lends only devices that the user names.
    """

    workers: tuple[str, ...]
    trainer: str | None = None
    listens_on_all: bool = False  # At all addresses of a machine, not only at these.
    absent: frozenset[int] = frozenset()  # Workers that this process does not use.

    @property
    def present(self) -> dict[int, str]:
        """The addresses of the workers that this process uses, by their numbers."""
        return {i: x for i, x in enumerate(self.workers) if i not in self.absent}

    def without(self, absent: Collection[int]) -> "Cluster":
        """Returns a copy that uses no `absent` workers. Numbers stay the same."""
        return replace(self, absent=frozenset(absent))


@dataclass(frozen=True)
class SchedulersCluster:
    """A cluster as a scheduler describes it."""

    source: str  # The scheduler, for messages.
    jobs: Mapping[str, Sequence[str]]  # Addresses by job: chief, worker, ...
    task_type: str | None  # This process's job; None if the scheduler does not give it.
    task_index: int | None
    hint: str
    # True if the job ends only after all its tasks, so workers end with their trainer.
    ends_together: bool = False


def parse_cluster_spec(text: str) -> Cluster:
    """Returns the cluster that the flag --cluster describes.

    Raises:
        ValueError: for other jobs or bad addresses.
    """
    jobs: dict[str, list[str]] = {}
    for entry in text.strip().split("@"):
        job, _, addresses = entry.partition("=")
        if job not in (WORKER_JOB, TRAINER_JOB) or job in jobs:
            left = {WORKER_JOB, TRAINER_JOB} - set(jobs)
            hint = f"{did_you_mean(job, left)} {HELP}"
            raise UserValueError(
                path="--cluster",
                expected=f"the job {WORKER_JOB!r}, and perhaps {TRAINER_JOB!r}, once",
                got=text,
                hint=hint.strip(),
            )
        jobs[job] = [address.strip() for address in addresses.split(",")]
    return checked_cluster(jobs, "--cluster", HELP)


def checked_cluster(jobs: dict[str, list[str]], source: str, hint: str) -> Cluster:
    """Returns the cluster of `jobs`, which has the tasks' addresses for each job name.

    Raises:
        ValueError: if the cluster is not valid. The error names `source`.
    """

    def check(is_right: bool, expected: str, got: object) -> None:
        if not is_right:
            raise UserValueError(path=source, expected=expected, got=got, hint=hint)

    workers, trainers = jobs.get(WORKER_JOB, []), jobs.get(TRAINER_JOB, [])
    addresses = [*trainers, *workers]
    wrong = [address for address in addresses if not _is_address(address)]
    twice = sorted({x for x in addresses if addresses.count(x) > 1})
    check(bool(workers), "a job 'worker' with addresses", sorted(jobs))
    check(len(trainers) <= 1, "at most one trainer", trainers)
    check(not wrong, "all addresses as host:port", wrong)
    check(not twice, "a different address for each task", twice)
    return Cluster(tuple(workers), trainers[0] if trainers else None)


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port, such as `::1` and 2222 for `[::1]:2222`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def checked_task(task: int, workers: Sequence[str]) -> int:
    """Returns `task` if there is a worker of this number.

    Raises:
        ValueError: if there is no such worker.
    """
    if not 0 <= task < len(workers):
        number = len(workers)
        expected = f"one of the {number} workers in --cluster, 0..{number - 1}"
        raise UserValueError(path="--task", expected=expected, got=task)
    return task


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[2]) <= _MAX_PORT
