"""Shutdown notices: a trainer announces its end to its workers.

Like a worker's description, a notice is a variable of the worker's TensorFlow server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.handshake import server_session

_VARIABLE = "lingvo_pipe_dismissal"


class ShutdownNotice:
    """The shutdown notice in a worker's server, at `target`."""

    def __init__(self, target: str) -> None:
        with tf.Graph().as_default():
            self._is_given = tf.raw_ops.VarIsInitializedOp(resource=_variable())
            self._session = server_session(target)

    def is_given(self) -> bool:
        """Returns True if the trainer has announced its end."""
        try:
            return bool(self._session.run(self._is_given))
        except tf.errors.OpError:  # Such as a timeout, while long operations run.
            return False


@contextlib.contextmanager
def announcing_shutdown(cluster: Cluster) -> Iterator[None]:
    """Announces the trainer's end to all workers at the end of the block."""
    try:
        yield
    finally:
        announce_shutdown(cluster.workers)


def announce_shutdown(workers: Sequence[str]) -> None:
    """Announces the trainer's end to the workers at these addresses that answer."""
    threads = [threading.Thread(target=_announce, args=[each]) for each in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _announce(address: str) -> None:
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.Graph().as_default(),
        server_session(f"grpc://{address}") as session,
    ):
        value = tf.constant(1)
        session.run(tf.raw_ops.AssignVariableOp(resource=_variable(), value=value))


def _variable() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_VARIABLE)
