"""The cluster and the watch over its workers that the flags ask for.

Needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from lingvo_pipe.cli.flags import FLAGS
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.fault_tolerance.restarts import ProcessStart
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import (
    Membership,
    find_membership,
)

if TYPE_CHECKING:
    from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch

_WATCH_FLAGS = ("worker_timeout_seconds", "wait_for_workers_seconds")


def resolve_membership() -> Membership:
    """Returns this process's role in its cluster; sets --job and --task to it.

    Raises:
        ValueError: if a flag is only for tasks of a cluster; see `find_membership`.
        ConnectionError: see `find_membership`.
    """
    # A job that only reads needs no cluster, even on a scheduler's machine.
    if FLAGS.cluster is None and (FLAGS.list_models or FLAGS.mode != "train"):
        member = Membership(FLAGS.job, FLAGS.task, None)
    else:
        job = FLAGS.job if FLAGS["job"].present else None
        member = find_membership(FLAGS.cluster, job, FLAGS.task)
    if FLAGS.listen_on_all_addresses:
        member = dataclasses.replace(member, cluster=_open(member.cluster))
    FLAGS.job, FLAGS.task = member.job, member.task
    return member


def _open(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise UserValueError(
            "--listen_on_all_addresses is for tasks of a cluster; this process is in "
            "none. Leave it out, or give --cluster."
        )
    return dataclasses.replace(cluster, listens_on_all=True)


def worker_watch(member: Membership, start: ProcessStart) -> WorkerWatch | None:
    """Returns the watch by which a job survives lost workers; None without workers.

    Args:
        member: this process's role.
        start: command that started this process.

    Raises:
        ValueError: if a flag is for workers, and there are none.
    """
    if member.cluster is None:
        given = [f"--{name}" for name in _WATCH_FLAGS if FLAGS[name].present]
        if given:
            raise UserValueError(
                f"{' and '.join(given)} are for jobs on workers; this job has none. "
                "Leave them out, or give --cluster."
            )
        return None
    from lingvo_pipe.fault_tolerance.worker_watch import watch_workers
    from lingvo_pipe.pipeline.devices.shutdown_notice import announce_shutdown

    workers = member.cluster.workers
    return watch_workers(
        workers,
        FLAGS.worker_timeout_seconds,
        FLAGS.wait_for_workers_seconds,
        start,
        FLAGS.job,
        os.path.expanduser(FLAGS.logdir or ""),
        on_end=lambda: announce_shutdown(workers if member.ends_with_trainer else ()),
    )
