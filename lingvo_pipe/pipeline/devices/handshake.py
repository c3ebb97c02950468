"""Messages between a worker and its trainer, by variables of the worker's server.

A worker writes its description, which the trainer reads. A trainer writes a notice when
it ends, which the worker reads.
"""

import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_kind import NUM_THREADS, DeviceKind, local_kind
from lingvo_pipe.pipeline.devices.device_names import (
    KINDS,
    WORKER_JOB,
    DeviceName,
    device_name,
)
from lingvo_pipe.version import VERSION

ANSWER_SECONDS = 5.0
# Seconds in which a worker finishes its work for an earlier trainer.
FINISH_SECONDS = 600.0
_DESCRIPTION, _NOTICE = "lingvo_pipe_worker", "lingvo_pipe_dismissal"


@dataclass(frozen=True)
class WorkerDescription:
    """A worker's description of itself."""

    lingvo_pipe: str  # Version.
    tensorflow: str  # Version.
    task: int
    workers: tuple[str, ...]  # Addresses of all workers.
    kinds: tuple[str, ...]  # Kind of each of its devices: CPU, CPU, GPU, ...
    device_kinds: dict[str, DeviceKind]  # By the names of `device_kind_key`.
    host: str
    pid: int

    def to_json(self) -> str:
        """Returns the description as text, for `parse_description`."""
        return json.dumps(asdict(self))

    def counts(self) -> Counter[str]:
        """Returns the number of devices of each kind."""
        return Counter(self.kinds)

    def __str__(self) -> str:
        devices = ", ".join(f"{n} {kind}" for kind, n in self.counts().items())
        return f"host {self.host}, process {self.pid}, {devices}"


def parse_description(text: str) -> WorkerDescription | None:
    """Parses a worker's description. Returns None if another version wrote it."""
    try:
        values = json.loads(text)
        if set(values) != {field.name for field in fields(WorkerDescription)}:
            return None
        for name in ("workers", "kinds"):
            values[name] = tuple(map(str, values[name]))
        values["device_kinds"] = {
            name: {str(k): str(v) for k, v in dict(kind).items()}
            for name, kind in dict(values["device_kinds"]).items()
        }
        return WorkerDescription(**values)
    except (TypeError, ValueError):
        return None


def differences(
    found: WorkerDescription, task: int, workers: Sequence[str], ours: dict[str, str]
) -> list[str]:
    """Returns how a worker differs from what its trainer expects, as phrases.

    `ours` are the trainer's own versions of packages.
    """
    wrong = [
        f"{package} {getattr(found, package)} there, {version} here"
        for package, version in ours.items()
        if getattr(found, package) != version
    ]
    if found.task != task:
        wrong.append(f"worker:{found.task} there, worker:{task} here")
    if list(found.workers) != list(workers):
        there, here = ",".join(found.workers), ",".join(workers)
        wrong.append(f"workers {there} there, {here} here")
    return wrong


def device_kind_key(name: DeviceName) -> str:
    """Returns a key that only devices of one kind share, among a task's devices."""
    return "CPU" if name.kind == "CPU" else f"{name.kind}:{name.index}"


def versions() -> dict[str, str]:
    """Returns the versions that must be the same in all tasks."""
    return {"lingvo_pipe": VERSION, "tensorflow": tf.__version__}


def describe_worker(target: str, cluster: Cluster, task: int) -> None:
    """Writes this worker's description into its own server, at address `target`."""
    with tf.Graph().as_default(), server_session(target) as session:
        names = [
            device_name(device.name)
            for device in session.list_devices()
            if f"/job:{WORKER_JOB}/replica:0/task:{task}/" in device.name
            and device.device_type in KINDS
        ]
        description = WorkerDescription(
            **versions(),
            task=task,
            workers=cluster.workers,
            kinds=tuple(name.kind for name in names),
            device_kinds={
                device_kind_key(name): local_kind(name, NUM_THREADS) for name in names
            },
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        text = tf.constant(description.to_json())
        variable = server_variable(_DESCRIPTION, tf.string)
        session.run(tf.raw_ops.AssignVariableOp(resource=variable, value=text))


def read_worker(address: str) -> WorkerDescription | None:
    """Returns the description of the worker at `address`, or None if there is none.

    Raises:
        tf.errors.OpError: if no server answers.
    """
    with tf.Graph().as_default(), server_session(f"grpc://{address}") as session:
        variable = server_variable(_DESCRIPTION, tf.string)
        value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.string)
        try:
            text = session.run(value)
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            return None
    return parse_description(text.decode(errors="replace"))


def is_busy(address: str) -> bool:
    """Returns True if the server at `address` lists its devices, so is only busy."""
    with tf.Graph().as_default(), server_session(f"grpc://{address}") as session:
        with contextlib.suppress(tf.errors.OpError):
            return bool(session.list_devices())
        return False


class ShutdownNotice:
    """A trainer's notice of its end, as read from a worker's server at `target`."""

    def __init__(self, target: str) -> None:
        with tf.Graph().as_default():
            variable = server_variable(_NOTICE, tf.int32)
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
    """Announces the trainer's end to all workers when the context closes."""
    try:
        yield
    finally:
        announce_shutdown(cluster.workers)


def announce_shutdown(workers: Sequence[str]) -> None:
    """Announces the trainer's end to each worker that answers."""
    if workers:
        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(_announce, workers))


def _announce(address: str) -> None:
    with (
        contextlib.suppress(tf.errors.OpError),
        tf.Graph().as_default(),
        server_session(f"grpc://{address}") as session,
    ):
        variable = server_variable(_NOTICE, tf.int32)
        value = tf.constant(1)
        session.run(tf.raw_ops.AssignVariableOp(resource=variable, value=value))


def server_session(target: str, sees_all: bool = False) -> tf.compat.v1.Session:
    """Returns a session with a timeout. `sees_all` adds the devices of other tasks."""
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=int(ANSWER_SECONDS * 1000),
        device_filters=[] if sees_all else ["/job:none"],
    )
    return _Session(target, config=config)


class _Session(tf.compat.v1.Session):
    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError):
            super().close()


def server_variable(name: str, dtype: tf.DType) -> tf.Tensor:
    """Returns the handle of a scalar variable of the server that runs the graph.

    The variable is on the CPU, where it waits for no kernel of a GPU.
    """
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=[], shared_name=name)
