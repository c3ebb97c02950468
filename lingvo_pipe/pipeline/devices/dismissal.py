"""How a trainer that ends tells its workers.

As a worker's description, that is a variable of the worker's TensorFlow server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
        return bool(self._session.run(self._is_given))


@contextlib.contextmanager
def workers_dismissed_after(cluster: Cluster) -> Iterator[None]:
    """Tells all workers that the trainer ends when it does, by an error too."""
    try:
        yield
    finally:
        for address in cluster.workers:
            # One that is gone need not be told.
            with contextlib.suppress(tf.errors.OpError):
                _dismiss(address)


def _dismiss(address: str) -> None:
    with tf.Graph().as_default() as graph:
        told = tf.raw_ops.AssignVariableOp(resource=_variable(), value=tf.constant(1))
        with server_session(f"grpc://{address}", graph) as session:
            session.run(told)


def _variable() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=_VARIABLE)
