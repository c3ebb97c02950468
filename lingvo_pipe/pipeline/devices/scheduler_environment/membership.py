"""Finds a process's job, task and cluster, by its flags or its scheduler."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow
from lingvo_pipe.pipeline.devices.cluster_spec import (
    HELP,
    TRAINER_JOB,
    Cluster,
    SchedulersCluster,
    checked_cluster,
    parse_cluster_spec,
)
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.scheduler_environment.tf_config import (
    EVALUATOR_TYPE,
    HINT,
    TRAINER_TYPES,
    VARIABLE,
    parse_tf_config,
)

SCHEDULERS = ("tf_config", "slurm", "kubernetes")
_EVALER = "evaler"
# Our names of schedulers' jobs. Other jobs have the scheduler's name.
_OUR_JOBS = {**dict.fromkeys(TRAINER_TYPES, TRAINER_JOB), EVALUATOR_TYPE: _EVALER}
# Our jobs that may replace a scheduler's job.
_SUBSTITUTES = {
    WORKER_JOB: (),
    TRAINER_JOB: (_EVALER, "decoder", "exporter"),
    _EVALER: ("decoder", "exporter"),
}


@dataclass(frozen=True)
class Membership:
    """A process's job, task and cluster."""

    job: str  # A value of the flag --job.
    task: int | None  # Number of the worker, as --task.
    cluster: Cluster | None
    source: str = ""  # The scheduler that gave all this; empty if the user did.
    ends_with_trainer: bool = False  # True if workers end when the trainer does.

    def note(self) -> str:
        """Returns a line for the user if a scheduler gave the membership, else ""."""
        if not self.source:
            return ""
        if self.cluster is None:
            return f"{self.source}: {self.job} outside the cluster, on this machine."
        who = f"worker:{self.task}" if self.job == WORKER_JOB else self.job
        number = len(self.cluster.workers)
        note = f"{self.source}: {who}, of {number} worker{'s' if number > 1 else ''}."
        if self.job == WORKER_JOB and self.cluster.trainer is None:
            note += " None of the tasks trains: start a trainer as well."
        return note


def find_membership(
    flag: str | None, job: str | None = None, task: int | None = None
) -> Membership:
    """Returns the membership that follows from --cluster, --job and --task.

    Raises:
        ConnectionError: if the scheduler does not answer.
        ValueError: if the flags or the scheduler's cluster are not valid.
    """
    if flag is None:
        if not os.environ.get(VARIABLE):
            return Membership(job or TRAINER_JOB, task, None)
        flag = "tf_config"
    scheduler, _, labels = flag.partition(":")
    if scheduler in SCHEDULERS and (scheduler == "kubernetes" or not labels):
        return membership(_ask(scheduler, labels), job, task)
    if "=" not in scheduler:
        expected = f"the job 'worker', or one of {', '.join(SCHEDULERS)}"
        raise UserValueError(
            path="--cluster", expected=expected, got=flag, names=SCHEDULERS, hint=HELP
        )
    job = job or TRAINER_JOB
    return Membership(job, task, as_client(parse_cluster_spec(flag), job))


def _ask(scheduler: str, labels: str) -> SchedulersCluster:
    if scheduler == "tf_config":
        text = os.environ.get(VARIABLE)
        if not text:
            expected = "a cluster, for --cluster=tf_config"
            raise UserValueError(path=VARIABLE, expected=expected, got=text, hint=HINT)
        return parse_tf_config(text)
    with importing_tensorflow():
        from lingvo_pipe.pipeline.devices.scheduler_environment import cluster_resolvers
    if scheduler == "kubernetes":
        return cluster_resolvers.from_kubernetes(labels or cluster_resolvers.LABELS)
    return cluster_resolvers.from_slurm()


def membership(
    found: SchedulersCluster, job: str | None = None, task: int | None = None
) -> Membership:
    """Returns the membership that follows from a scheduler and the flags.

    An evaluator is not part of the cluster, as elsewhere in TensorFlow.

    Raises:
        ValueError: if the cluster is not valid, or contradicts the flags.
    """
    cluster = checked_cluster(_our_jobs(found.jobs), found.source, found.hint)
    its_job = found.task_type and _OUR_JOBS.get(found.task_type, found.task_type)
    its_task = found.task_index if its_job == WORKER_JOB else None
    if its_job is not None:
        _check_flags(found.source, its_job, its_task, job, task)
    is_evaluator = its_job == _EVALER
    its_job = job or its_job or TRAINER_JOB
    return Membership(
        its_job,
        its_task if task is None else task,
        None if is_evaluator else as_client(cluster, its_job),
        found.source,
        found.ends_together,
    )


def as_client(cluster: Cluster, job: str) -> Cluster:
    """Returns the cluster as a process with the given job uses it.

    A job that takes the trainer's place, such as an evaluation, takes any free port.
    """
    if cluster.trainer is None or job in (TRAINER_JOB, WORKER_JOB):
        return cluster
    return replace(cluster, trainer=f"{cluster.trainer.rpartition(':')[0]}:0")


def _our_jobs(jobs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    addresses_of_job: dict[str, list[str]] = {}
    for job, addresses in jobs.items():
        if job != EVALUATOR_TYPE:
            our_job = _OUR_JOBS.get(job, job)
            addresses_of_job.setdefault(our_job, []).extend(addresses)
    return addresses_of_job


def _check_flags(
    source: str, its_job: str, its_task: int | None, job: str | None, task: int | None
) -> None:

    def check(flag: str, got: object, expected: object, allowed: tuple) -> None:
        if got not in allowed:
            raise UserValueError(
                path=flag,
                expected=f"the value of {source}, {expected}",
                got=got,
                hint=f"Leave it out, or override {source} by --cluster=worker=...",
            )

    check("--job", job, its_job, (None, its_job, *_SUBSTITUTES.get(its_job, ())))
    expected = f"none for a {its_job}" if its_task is None else its_task
    check("--task", task, expected, (None, its_task))
