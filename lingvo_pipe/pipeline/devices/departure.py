"""The departure of a worker, which stays for a while so that its trainer can save.

    worker                                   trainer, every few seconds
    SIGTERM: it says that it is leaving ---> the run saves a checkpoint
      it stays as long as it is used    <--- then the trainer no longer uses the worker
    it ends

Both talk by variables of the worker's server.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from lingvo_pipe.pipeline.devices.handshake import server_session, server_variable

_LEAVING, _USE = "lingvo_pipe_leaving", "lingvo_pipe_use"
_ENDED = 0  # The value of `_USE` after a trainer's last use.
# Seconds after which a trainer that has written nothing no longer uses the worker.
_SILENT_SECONDS = 15.0
# Seconds for which a worker waits if its server does not answer, such as during long
# operations.
_BUSY_SECONDS = 60.0
_POLL_SECONDS = 0.5
_MAX_THREADS = 32


class Departure:
    """A worker's departure, after SIGTERM. `target` is the address of its server."""

    def __init__(
        self, target: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        with tf.Graph().as_default():
            leaving = server_variable(_LEAVING, tf.int64)
            self._leave = _assign(leaving, tf.constant(1, tf.int64))
            use = server_variable(_USE, tf.int64)
            self._use = tf.raw_ops.ReadVariableOp(resource=use, dtype=tf.int64)
            self._session = server_session(target)
        self._clock = clock
        self._last: int | None = None
        self._changed: float | None = None  # When `_last` was read first.
        self._is_announced = False

    def is_used(self) -> bool:
        """Says that the worker is leaving. Returns whether a trainer uses it."""
        if self._changed is None:
            self._changed = self._clock()
        try:
            if not self._is_announced:
                self._session.run(self._leave)
                self._is_announced = True
            use = int(self._session.run(self._use))
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            return False  # No trainer has used it.
        except tf.errors.OpError:
            return self._clock() - self._changed < _BUSY_SECONDS
        if use != self._last:
            self._last, self._changed = use, self._clock()
        return use != _ENDED and self._clock() - self._changed < _SILENT_SECONDS

    def is_released(self) -> bool:
        """Calls `is_used`. Returns whether a trainer used it, and has stopped."""
        return not self.is_used() and self._last is not None

    def wait(self) -> None:
        """Waits until no trainer uses the worker."""
        while self.is_used():
            time.sleep(_POLL_SECONDS)


class WorkerUse:
    """A trainer's use of workers at some addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._workers: dict[int, _UsedWorker] = {}

    def renew(self, tasks: Collection[int]) -> set[int]:
        """Tells workers that they are used. Returns those that are leaving."""
        leaving = self._write(tasks, time.time_ns())
        return {task for task, is_leaving in leaving.items() if is_leaving}

    def end(self, tasks: Collection[int]) -> None:
        """Tells workers that they are no longer used, and closes the sessions."""
        self._write(tasks, _ENDED)
        for task in tasks:
            if worker := self._workers.pop(task, None):
                worker.session.close()

    def _write(self, tasks: Collection[int], use: int) -> dict[int, bool]:
        for task in tasks:
            if task not in self._workers:
                self._workers[task] = _UsedWorker(self._addresses[task])
        if not tasks:
            return {}
        with ThreadPoolExecutor(min(len(tasks), _MAX_THREADS)) as pool:
            leaving = pool.map(lambda task: self._workers[task].write(use), tasks)
            return dict(zip(tasks, leaving, strict=True))


class _UsedWorker:
    def __init__(self, address: str) -> None:
        with tf.Graph().as_default():
            self._value = tf.compat.v1.placeholder(tf.int64, [])
            self._assign = _assign(server_variable(_USE, tf.int64), self._value)
            leaving = server_variable(_LEAVING, tf.int64)
            self._is_leaving = tf.raw_ops.VarIsInitializedOp(resource=leaving)
            self.session = server_session(f"grpc://{address}")

    def write(self, use: int) -> bool:
        """Writes a value of `_USE`, and returns whether the worker is leaving."""
        fetches = [self._is_leaving, self._assign]
        try:
            return bool(self.session.run(fetches, {self._value: use})[0])
        except tf.errors.OpError:  # It is lost, or long operations run.
            return False


def is_leaving(address: str) -> bool:
    """Returns whether a worker that answers at an address is leaving."""
    with tf.Graph().as_default(), server_session(f"grpc://{address}") as session:
        variable = server_variable(_LEAVING, tf.int64)
        try:
            value = tf.raw_ops.VarIsInitializedOp(resource=variable)
            return bool(session.run(value))
        except tf.errors.OpError:
            return False


def _assign(variable: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=variable, value=value)
