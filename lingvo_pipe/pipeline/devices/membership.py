"""What a process is in a cluster that a scheduler describes, and its flags. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lingvo_pipe.pipeline.devices.cluster_spec import (
    TRAINER_JOB,
    Cluster,
    checked_cluster,
)
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.tf_config import EVALUATOR_TYPE, TRAINER_TYPES

_EVALER = "evaler"
# What else may be done where TensorFlow's convention has a trainer, or an evaluator.
_ALSO = {
    WORKER_JOB: (),
    TRAINER_JOB: (_EVALER, "decoder", "exporter"),
    _EVALER: ("decoder", "exporter"),
}


@dataclass(frozen=True)
class SchedulersCluster:
    """What a scheduler says.

    Attributes:
        source: who says it, for messages.
        jobs: addresses by job, which may be chief, worker, ...
        task_type: which job this process is of; None: it is not said.
        task_index: which of its tasks.
        remedy: what to write instead if it is wrong.
        ends_together: whether tasks are to end when the trainer does, for the scheduler
            leaves that to them.
    """

    source: str
    jobs: Mapping[str, Sequence[str]]
    task_type: str | None
    task_index: int | None
    remedy: str
    ends_together: bool = False


@dataclass(frozen=True)
class Membership:
    """What a process does.

    Attributes:
        job: as the flag --job.
        task: which worker it is, as --task, or None.
        cluster: whom it works with; None: nobody.
        source: the scheduler that says so; empty: the user does.
        ends_with_trainer: whether workers are to end when the trainer does.
    """

    job: str
    task: int | None
    cluster: Cluster | None
    source: str = ""
    ends_with_trainer: bool = False

    def note(self) -> str:
        """A line for the user on what a scheduler says; empty if none does."""
        if not self.source:
            return ""
        if self.cluster is None:
            return f"{self.source}: {self.job} beside a cluster, on this machine."
        who = f"worker:{self.task}" if self.job == WORKER_JOB else self.job
        number = len(self.cluster.workers)
        note = f"{self.source}: {who}, of {number} worker{'s' if number > 1 else ''}."
        if self.job == WORKER_JOB and self.cluster.trainer is None:
            note += " None of the tasks trains: start a trainer beside them."
        return note


def membership(
    told: SchedulersCluster, job: str | None = None, task: int | None = None
) -> Membership:
    """Settles what a scheduler and a user say of a process.

    An evaluator stands beside a cluster and uses its own machine, as it does elsewhere
    in TensorFlow.

    Args:
        told: what the scheduler says.
        job: the flag --job, if it was given.
        task: the flag --task, likewise.

    Raises:
        ValueError: if that is no cluster, or the two contradict each other.
    """
    jobs = _our_jobs(told.jobs)
    cluster = checked_cluster(jobs, told.source, told.remedy)
    its_job = _job(told.task_type)
    its_task = told.task_index if its_job == WORKER_JOB else None
    _check_same(told.source, its_job, its_task, job, task)
    is_beside = its_job == _EVALER
    its_job = job or its_job or TRAINER_JOB
    return Membership(
        its_job,
        its_task if task is None else task,
        None if is_beside else as_client(cluster, its_job),
        told.source,
        told.ends_together,
    )


def as_client(cluster: Cluster, job: str) -> Cluster:
    """The cluster as it is to a job that uses workers while no trainer does.

    At the trainer's address, but at any port: an older trainer may still have its own.
    """
    if cluster.trainer is None or job in (TRAINER_JOB, WORKER_JOB):
        return cluster
    return replace(cluster, trainer=f"{cluster.trainer.rpartition(':')[0]}:0")


def _our_jobs(jobs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Workers, and whoever trains under the name of trainer."""
    ours: dict[str, list[str]] = {}
    for job, addresses in jobs.items():
        if job != EVALUATOR_TYPE:
            name = TRAINER_JOB if job in TRAINER_TYPES else job
            ours.setdefault(name, []).extend(addresses)
    return ours


def _job(task_type: str | None) -> str | None:
    if task_type in TRAINER_TYPES:
        return TRAINER_JOB
    return _EVALER if task_type == EVALUATOR_TYPE else task_type


def _check_same(
    source: str,
    its_job: str | None,
    its_task: int | None,
    job: str | None,
    task: int | None,
) -> None:
    """Raises ValueError unless flags given are what the scheduler says, or go on it."""
    allowed = (None, its_job, *_ALSO.get(its_job or "", ()))
    if its_job is not None and job not in allowed:
        raise ValueError(
            f"--job must be what {source} says, {its_job}; got {job}. Leave --job out, "
            f"or give --cluster=worker=... to set {source} aside."
        )
    if its_job is not None and task not in (None, its_task):
        raise ValueError(
            f"--task must be what {source} says, "
            f"{'none, of a ' + its_job if its_task is None else its_task}; got {task}. "
            f"Leave --task out, or give --cluster=worker=... to set {source} aside."
        )
