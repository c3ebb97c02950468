"""What the trainer's flags about a cluster mean. No TensorFlow, as in `trainer`."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from absl import flags

from lingvo_pipe.pipeline.devices.cluster_source import find_membership
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.membership import Membership

FLAGS = flags.FLAGS

_NEEDED = ("cluster", "task")
_OF_WORKERS = {"job", "cluster_spec", "listen_on_all_addresses", "traceback", *_NEEDED}


def settle_membership() -> Membership:
    """What this process does in which cluster; sets --job and --task to that.

    Raises:
        ValueError: as `find_membership`, as which it also raises ConnectionError; or if
            a flag is only for tasks of a cluster.
    """
    # What only reads, on a machine that a scheduler has set up, needs no cluster.
    if FLAGS.cluster is None and (FLAGS.list_models or FLAGS.mode != "train"):
        member = Membership(FLAGS.job, FLAGS.task, None)
    else:
        job = FLAGS.job if FLAGS["job"].present else None
        member = find_membership(FLAGS.cluster, job, FLAGS.task)
    if FLAGS.listen_on_all_addresses:
        member = dataclasses.replace(member, cluster=_open(member.cluster))
    FLAGS.job, FLAGS.task = member.job, member.task
    return member


def check_worker_flags(given: Set[str]) -> None:
    """Raises ValueError unless these flags, and no others, make a worker.

    Args:
        given: names of flags on the command line.
    """
    missing = [f"--{name}" for name in _NEEDED if FLAGS[name].value is None]
    more = sorted(f"--{name}" for name in given - _OF_WORKERS)
    if missing or more:
        raise ValueError(
            "--job=worker takes --cluster and --task, and leaves all else to the "
            f"trainer; missing: {missing}, too many: {more}. For example: --job=worker "
            "--task=0 --cluster=worker=host1:2222,host2:2222."
        )


def _open(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise ValueError(
            "--listen_on_all_addresses is for tasks of a cluster; this is none. Leave "
            "it out, or give --cluster."
        )
    return dataclasses.replace(cluster, listens_on_all=True)
