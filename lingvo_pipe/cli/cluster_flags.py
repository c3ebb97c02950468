"""A process's role in a cluster, and the watch over workers. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import tqdm

from lingvo_pipe.cli.flags import FLAGS
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.restarts import ProcessStart, Restarts, progress_of
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import (
    Membership,
    find_membership,
)

if TYPE_CHECKING:
    from lingvo_pipe.cli.elastic_job import ElasticJob
    from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
    from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch

_WATCH_FLAGS = (
    "worker_timeout_seconds",
    "wait_for_workers_seconds",
    "lost_worker_seconds",
    "grow_seconds",
)


def resolve_membership() -> Membership:
    """Returns this process's role in a cluster, and sets --job and --task to the role.

    Raises:
        ValueError: if a flag does not fit this process's role.
    """
    # A job that only reads needs no cluster, even on a scheduler's machine.
    if FLAGS.cluster is None and (FLAGS.list_models or FLAGS.mode != "train"):
        member = Membership(FLAGS.job, FLAGS.task, None)
    else:
        if FLAGS.elastic and (FLAGS.cluster or "").startswith("kubernetes"):
            raise UserValueError(
                path="--elastic",
                expected="workers that --cluster names",
                got=FLAGS.cluster,
                hint="A new pod has another address. Name the pods of a StatefulSet.",
            )
        job = FLAGS.job if FLAGS["job"].present else None
        member = find_membership(FLAGS.cluster, job, FLAGS.task)
    if FLAGS.listen_on_all_addresses:
        if member.cluster is None:
            raise UserValueError(
                path="--listen_on_all_addresses",
                expected="a task of a cluster",
                hint="Leave it out, or give --cluster.",
            )
        cluster = dataclasses.replace(member.cluster, listens_on_all=True)
        member = dataclasses.replace(member, cluster=cluster)
    FLAGS.job, FLAGS.task = member.job, member.task
    return member


def job_restarts(start: ProcessStart, is_saving: Callable[[], bool]) -> Restarts:
    """Returns the object that counts and performs restarts of this process."""
    job, logdir = FLAGS.job, os.path.expanduser(FLAGS.logdir or "")
    progress = functools.partial(progress_of, job, logdir)
    return Restarts(start, progress, is_saving, tqdm.tqdm.write)


def worker_watch(
    member: Membership,
    restarts: Restarts,
    save: Callable[[], bool],
    elastic: ElasticWorkers | None = None,
) -> WorkerWatch | None:
    """Returns an object that restarts the job if a worker is lost.

    Returns None if there are no workers. For `save` and `elastic` see `WorkerWatch`.

    Raises:
        ValueError: if flags of the watch are given without workers.
    """
    if member.cluster is None:
        for name in _WATCH_FLAGS:
            if FLAGS[name].present:
                raise UserValueError(
                    path=f"--{name}",
                    expected="a job on workers",
                    hint="Leave it out, or give --cluster.",
                )
        return None
    from lingvo_pipe.fault_tolerance.worker_status import LostWorkers, WorkerQuestions
    from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch, own_client_number
    from lingvo_pipe.pipeline.devices.departure import WorkerUse
    from lingvo_pipe.pipeline.devices.handshake import announce_shutdown

    workers, timeout = member.cluster.workers, FLAGS.worker_timeout_seconds
    questions = WorkerQuestions(workers)
    return WorkerWatch(
        LostWorkers(workers, questions, timeout, own_client_number),
        timeout,
        FLAGS.wait_for_workers_seconds,
        restarts,
        resumes=FLAGS.job == "trainer",
        log=tqdm.tqdm.write,
        elastic=elastic,
        use=WorkerUse(workers) if FLAGS.job == "trainer" else None,
        save=save,
        on_end=lambda: announce_shutdown(workers if member.ends_with_trainer else ()),
    )


def elastic_job(
    member: Membership, restarts: Restarts, save: Callable[[], bool]
) -> ElasticJob:
    """Returns the elastic job that --elastic asks for. See `worker_watch`."""
    from lingvo_pipe.cli.elastic_job import ElasticJob
    from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers

    policy = ElasticWorkers(
        min(FLAGS.lost_worker_seconds, FLAGS.wait_for_workers_seconds),
        FLAGS.grow_seconds,
        LeftOut.read(os.environ),
        restarts.progress,
        tqdm.tqdm.write,
    )
    return ElasticJob(
        FLAGS.min_devices,
        policy,
        restarts,
        member.cluster,
        worker_watch(member, restarts, save, policy),
        tqdm.tqdm.write,
        member.ends_with_trainer,
    )
