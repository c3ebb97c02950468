"""Workers: processes, on this machine or others, on whose devices stages run.

    trainer (localhost) --gRPC-- worker:0 --gRPC-- worker:1 --gRPC-- ...

The trainer and its workers make up a TensorFlow cluster: the workers' devices become
devices of the trainer's process like its own. Each task reaches each other by its
address, the trainer too, whose address is the one that workers see.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import split_address
from lingvo_pipe.pipeline.devices.device_names import LOCAL_JOB, WORKER_JOB

# Seconds in which workers that are starting may come up, and others.
_PATIENCE = 10.0
_PAUSE = 0.2
_TO_CONNECT = 1.0
_TO_ANSWER = 5.0
_TO_HANG_UP = 2.0


@dataclass
class _Cluster:
    """What this process is connected to: a process has one cluster, as TensorFlow does.

    Attributes:
        workers: their addresses.
        incarnations: of all devices, by full name.
    """

    workers: list[str] = field(default_factory=list)
    incarnations: dict[str, int] = field(default_factory=dict)


_cluster = _Cluster()


def connect(workers: Sequence[str]) -> None:
    """Makes the workers' devices devices of this process.

    Args:
        workers: addresses of worker 0, 1, ...

    Raises:
        ConnectionError: if workers can't be reached, or are not what they should be.
        RuntimeError: if this process is connected to others.
    """
    if _cluster.workers:
        if _cluster.workers != list(workers):
            raise RuntimeError(
                "A process connects to one cluster only; it has connected to "
                f"{_cluster.workers}, now got {list(workers)}. Start another process."
            )
        return
    own_host = _reach(workers)
    _check_tasks(workers)
    own = f"{own_host}:{_unused_port()}"
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec({WORKER_JOB: list(workers), LOCAL_JOB: [own]}),
        job_name=LOCAL_JOB,
        task_index=0,
    )
    tf.config.list_logical_devices()  # Makes the connections.
    _cluster.workers = list(workers)
    _cluster.incarnations = _incarnations(own)


def incarnation(device: str) -> int:
    """What tells a device from those of its name in processes before and after.

    Whoever sends to another process must say which it is.

    Args:
        device: full name.
    """
    return _cluster.incarnations.get(device, 0)


@contextlib.contextmanager
def lost_workers_named() -> Iterator[None]:
    """Has an error that comes of the loss of a worker say so.

    Raises:
        ConnectionError: naming the workers that are gone.
    """
    try:
        yield
    except tf.errors.OpError as error:
        lost = _lost()
        if not lost:
            raise
        raise ConnectionError(
            f"Workers must stay up while a trainer runs; {' and '.join(lost)}. The "
            "last checkpoint is kept: see that all workers run, and start again to go "
            "on from it."
        ) from error


def _reach(workers: Sequence[str]) -> str:
    """Waits until all workers can be reached; returns this host's address for them."""
    seen_from: dict[str, str] = {}
    deadline = time.monotonic() + _PATIENCE
    while True:
        for worker in workers:
            own_host = None if worker in seen_from else _own_host(worker)
            if own_host is not None:
                seen_from[worker] = own_host
        absent = [
            f"worker:{task} at {worker}"
            for task, worker in enumerate(workers)
            if worker not in seen_from
        ]
        if not absent:
            hosts = list(seen_from.values())
            return next((host for host in hosts if not _is_loopback(host)), hosts[0])
        if time.monotonic() > deadline:
            raise ConnectionError(
                f"Workers must be up before the trainer; {', '.join(absent)} can't be "
                f"reached within {_PATIENCE:.0f} seconds. Start each with --job=worker "
                "--task=<its number> and the same --cluster_spec."
            )
        time.sleep(_PAUSE)


def _own_host(worker: str) -> str | None:
    """The address under which `worker` sees this machine; None: it can't be reached."""
    try:
        with socket.create_connection(split_address(worker), _TO_CONNECT) as connection:
            host = connection.getsockname()[0]
    except OSError:
        return None
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "[::1]"


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def _check_tasks(workers: Sequence[str]) -> None:
    """Raises ConnectionError unless all workers have this cluster_spec."""
    everyone = set(range(len(workers)))
    for task, worker in enumerate(workers):
        try:
            tasks = [_task(device) for device in _incarnations(worker)]
        except tf.errors.OpError as error:
            raise ConnectionError(
                f"worker:{task} at {worker} must answer as a worker of this cluster; "
                f"it does not within {_TO_ANSWER:.0f} seconds. Give the same "
                "--cluster_spec to all tasks."
            ) from error
        if tasks[0] != task or set(tasks) != everyone:
            raise ConnectionError(
                "All tasks must be given the same --cluster_spec; "
                f"{worker} is worker:{task} of {len(workers)} here, and runs as "
                f"worker:{tasks[0]} of {len(set(tasks))}."
            )


def _incarnations(task: str) -> dict[str, int]:
    """Incarnations of all devices that a task knows, by full name, its own first.

    Args:
        task: its address.
    """
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=int(_TO_ANSWER * 1000))
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(f"grpc://{task}", config=config) as session,
    ):
        return {device.name: device.incarnation for device in session.list_devices()}


def _task(device: str) -> int:
    return tf.DeviceSpec.from_string(device).task


def _lost() -> list[str]:
    """What has become of workers that are no longer what they were."""
    # A process that was killed may be seen to hang up before its port is free.
    deadline = time.monotonic() + _TO_HANG_UP
    while True:
        unreached = [w for w in _cluster.workers if _own_host(w) is None]
        if unreached or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    gone = unreached or [w for w in _cluster.workers if not _is_the_same(w)]
    named = [f"worker:{_cluster.workers.index(w)} at {w}" for w in gone]
    return [f"{name} {'is gone' if unreached else 'has restarted'}" for name in named]


def _is_the_same(worker: str) -> bool:
    """Whether a worker that can be reached is the process it was."""
    try:
        device, its_incarnation = next(iter(_incarnations(worker).items()))
    except tf.errors.OpError:
        return False
    return its_incarnation == incarnation(device)
