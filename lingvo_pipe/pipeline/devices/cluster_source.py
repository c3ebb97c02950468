"""Where a process learns of its cluster: from --cluster, or from its scheduler.

TensorFlow is imported only where a scheduler is asked, so that whatever is wrong with
the rest is told at once.
"""

from __future__ import annotations

import os

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.devices.cluster_spec import (
    HELP,
    TRAINER_JOB,
    parse_cluster_spec,
)
from lingvo_pipe.pipeline.devices.membership import (
    Membership,
    SchedulersCluster,
    as_client,
    membership,
)
from lingvo_pipe.pipeline.devices.tf_config import REMEDY, VARIABLE, check_tf_config
from lingvo_pipe.quiet_startup import quiet_startup

SCHEDULERS = ("tf_config", "slurm", "kubernetes")


def find_membership(
    flag: str | None, job: str | None = None, task: int | None = None
) -> Membership:
    """What this process does, and with whom.

    Args:
        flag: --cluster; None: TF_CONFIG is taken if it is set.
        job: --job, if it was given.
        task: --task, likewise.

    Raises:
        ValueError: if there is something wrong with one of them, or with what the
            scheduler says; see `membership`.
        ConnectionError: if the scheduler does not answer.
    """
    if flag is None:
        if not os.environ.get(VARIABLE):
            return Membership(job or TRAINER_JOB, task, None)
        flag = "tf_config"
    scheduler, _, labels = flag.partition(":")
    if scheduler in SCHEDULERS and (scheduler == "kubernetes" or not labels):
        return membership(_ask(scheduler, labels), job, task)
    if "=" not in scheduler:
        raise ValueError(
            f"--cluster must name the job 'worker', or be {', '.join(SCHEDULERS)}; got "
            f"{flag!r}.{did_you_mean(scheduler, SCHEDULERS)} {HELP}"
        )
    job = job or TRAINER_JOB
    return Membership(job, task, as_client(parse_cluster_spec(flag), job))


def _ask(scheduler: str, labels: str) -> SchedulersCluster:
    if scheduler == "tf_config":
        text = os.environ.get(VARIABLE)
        if not text:
            raise ValueError(f"--cluster=tf_config needs TF_CONFIG to be set. {REMEDY}")
        check_tf_config(text)
    with quiet_startup():
        from lingvo_pipe.pipeline.devices import cluster_resolvers, kubernetes_pods
    if scheduler == "kubernetes":
        return cluster_resolvers.from_kubernetes(labels or kubernetes_pods.LABELS)
    if scheduler == "slurm":
        return cluster_resolvers.from_slurm()
    return cluster_resolvers.from_tf_config()
