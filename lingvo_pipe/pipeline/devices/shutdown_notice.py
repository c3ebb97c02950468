"""Shutdown notices of a trainer's end: variables of its workers' TensorFlow servers."""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.handshake import server_session, server_variable

_VARIABLE = "lingvo_pipe_dismissal"


class ShutdownNotice:
    """The shutdown notice in a worker's server, at `target`."""

    def __init__(self, target: str) -> None:
        with tf.Graph().as_default():
            variable = server_variable(_VARIABLE, tf.int32)
            self._is_given = tf.raw_ops.VarIsInitializedOp(resource=variable)
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
    if workers:
        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(_announce, workers))


def _announce(address: str) -> None:
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.Graph().as_default(),
        server_session(f"grpc://{address}") as session,
    ):
        variable = server_variable(_VARIABLE, tf.int32)
        value = tf.constant(1)
        session.run(tf.raw_ops.AssignVariableOp(resource=variable, value=value))
