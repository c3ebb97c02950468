"""How a trainer that ends tells its workers.

As a worker's description, that is a variable of the worker's TensorFlow server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.handshake import server_session

_VARIABLE = "lingvo_pipe_dismissal"


class Dismissal:
    """What a worker looks at to see whether its trainer has ended.

    Args:
        target: of the worker's server.
    """

    def __init__(self, target: str) -> None:
        with tf.Graph().as_default() as graph:
            variable = _variable()
            self._is_given = tf.raw_ops.VarIsInitializedOp(resource=variable)
            self._session = server_session(target, graph)

    def is_given(self) -> bool:
        """Whether the trainer has said that it ends."""
        try:
            return bool(self._session.run(self._is_given))
        except tf.errors.OpError:  # Such as late, for long operations run.
            return False


@contextlib.contextmanager
def workers_dismissed_after(cluster: Cluster) -> Iterator[None]:
    """Tells all workers that the trainer ends when it does, by an error too."""
    try:
        yield
    finally:
        dismiss(cluster.workers)


def dismiss(workers: Sequence[str]) -> None:
    """Tells workers that the trainer ends; one that is gone or hangs is not waited for.

    Args:
        workers: their addresses.
    """
    telling = [threading.Thread(target=_dismiss, args=[each]) for each in workers]
    for each in telling:
        each.start()
    for each in telling:
        each.join()


def _dismiss(address: str) -> None:
    with tf.Graph().as_default() as graph:
        told = tf.raw_ops.AssignVariableOp(resource=_variable(), value=tf.constant(1))
        with (
            contextlib.suppress(tf.errors.OpError),
            server_session(f"grpc://{address}", graph) as session,
        ):
            session.run(told)


def _variable() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_VARIABLE)
