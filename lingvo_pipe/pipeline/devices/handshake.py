"""How a worker tells its trainer what it is.

A worker keeps a description of itself in its own TensorFlow server, as a variable with
a name that is known. A trainer reads it before it connects.
"""

from __future__ import annotations

import contextlib
import os
import socket

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.worker_description import (
    WorkerDescription,
    read_description,
)
from lingvo_pipe.version import VERSION

TO_ANSWER = 5.0  # Seconds.
# Seconds in which a worker finishes what it does for a trainer before.
TO_FINISH = 600.0
_VARIABLE = "lingvo_pipe_worker"
# A session sees all tasks that no filter leaves out, and waits for each of them.
_NO_OTHERS = ["/job:none"]


def versions() -> dict[str, str]:
    """Those that must be the same in all tasks."""
    return {"lingvo_pipe": VERSION, "tensorflow": tf.__version__}


def describe_worker(target: str, cluster: Cluster, task: int) -> None:
    """Writes down in this process's own server what it is.

    Args:
        target: of the server.
        cluster: as this process was told of it.
        task: which worker it is.
    """
    with tf.Graph().as_default(), server_session(target) as session:
        description = WorkerDescription(
            **versions(),
            task=task,
            workers=cluster.workers,
            kinds=tuple(
                device.device_type
                for device in session.list_devices()
                if f"/job:{WORKER_JOB}/replica:0/task:{task}/" in device.name
            ),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        text = tf.constant(description.to_json())
        session.run(tf.raw_ops.AssignVariableOp(resource=_variable(), value=text))


def read_worker(address: str) -> WorkerDescription | None:
    """What a task says of itself; None: nothing that we understand.

    Raises:
        tf.errors.OpError: if it does not answer as a TensorFlow server.
    """
    with tf.Graph().as_default(), server_session(f"grpc://{address}") as session:
        value = tf.raw_ops.ReadVariableOp(resource=_variable(), dtype=tf.string)
        try:
            text = session.run(value)
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            return None
    return read_description(text.decode(errors="replace"))


def is_busy(address: str) -> bool:
    """Whether a task answers as a TensorFlow server, though not what it says of itself.

    All its threads may be at work for a trainer that is gone.
    """
    with tf.Graph().as_default(), server_session(f"grpc://{address}") as session:
        try:
            return bool(session.list_devices())
        except tf.errors.OpError:
            return False


def server_session(target: str, graph: tf.Graph | None = None) -> tf.compat.v1.Session:
    """A session with one server, which waits for no other and not without end.

    Args:
        target: of the server.
        graph: None: the current one.
    """
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=int(TO_ANSWER * 1000), device_filters=_NO_OTHERS
    )
    return _Session(target, graph, config)


class _Session(tf.compat.v1.Session):
    def close(self) -> None:
        """Closes it; a server that can't be told is left with it."""
        with contextlib.suppress(tf.errors.OpError):
            super().close()


def _variable() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=_VARIABLE)
