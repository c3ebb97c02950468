"""What the trainer's flags about lost workers mean. No TensorFlow, as in `trainer`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from absl import flags

from lingvo_pipe.failures.restarts import ProcessStart
from lingvo_pipe.pipeline.devices.membership import Membership

if TYPE_CHECKING:
    from lingvo_pipe.failures.worker_watch import WorkerWatch

FLAGS = flags.FLAGS

_WATCH_FLAGS = ("worker_timeout_seconds", "wait_for_workers_seconds")


def watch_of(member: Membership, start: ProcessStart) -> WorkerWatch | None:
    """Has the job survive the loss of workers, if there are any.

    Args:
        member: what this process is.
        start: how it was started.

    Raises:
        ValueError: if a flag is for workers, and there are none.
    """
    given = [f"--{name}" for name in _WATCH_FLAGS if FLAGS[name].present]
    if member.cluster is None:
        if given:
            raise ValueError(
                f"{' and '.join(given)} are for jobs on workers; this job has none. "
                "Leave them out, or give --cluster."
            )
        return None
    from lingvo_pipe.failures.worker_watch import watch_workers
    from lingvo_pipe.pipeline.devices.dismissal import dismiss

    workers = member.cluster.workers
    return watch_workers(
        workers,
        FLAGS.worker_timeout_seconds,
        FLAGS.wait_for_workers_seconds,
        start,
        FLAGS.job,
        os.path.expanduser(FLAGS.logdir or ""),
        on_end=lambda: dismiss(workers if member.ends_with_trainer else ()),
    )
