"""Workers: processes, on this machine or others, on whose devices stages run.

    trainer (localhost) --gRPC-- worker:0 --gRPC-- worker:1 --gRPC-- ...

The trainer and its workers make up a TensorFlow cluster: the workers' devices become
devices of the trainer's process like its own. Each task reaches each other by its
address, the trainer too, whose address is the one that workers see, or that it was
given.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, split_address
from lingvo_pipe.pipeline.devices.device_names import LOCAL_JOB, WORKER_JOB
from lingvo_pipe.pipeline.devices.handshake import (
    TO_ANSWER,
    TO_FINISH,
    is_busy,
    read_worker,
    versions,
)
from lingvo_pipe.pipeline.devices.own_addresses import own_addresses
from lingvo_pipe.pipeline.devices.own_port import check_port, unused_ports
from lingvo_pipe.pipeline.devices.socket_fence import fenced_meanwhile
from lingvo_pipe.pipeline.devices.worker_description import (
    WorkerDescription,
    differences,
)

# Seconds in which workers that are starting may come up, and others.
_PATIENCE = 10.0
_PAUSE = 0.2
_TO_CONNECT = 1.0


@dataclass
class _Cluster:
    """What this process is connected to: a process has one cluster, as TensorFlow does.

    Attributes:
        workers: their addresses.
        incarnations: of all devices, by full name.
        note: a line for the user: who the workers are.
    """

    workers: list[str] = field(default_factory=list)
    note: str = ""
    incarnations: dict[str, int] = field(default_factory=dict)


_cluster = _Cluster()


@dataclass(frozen=True)
class Meeting:
    """What a trainer has learned of its workers before it connects to them.

    Attributes:
        own_host: this machine's address as they see it.
        workers: what worker 0, 1, ... say of themselves.
    """

    own_host: str
    workers: tuple[WorkerDescription, ...]

    def note(self, cluster: Cluster) -> str:
        """A line for the user: who the workers are."""
        return "workers: " + "; ".join(
            f"worker:{task} at {address} ({worker})"
            for task, (address, worker) in enumerate(
                zip(cluster.workers, self.workers, strict=True)
            )
        )


def meet(cluster: Cluster) -> Meeting:
    """Waits for all workers, and sees that they are what they should be.

    Raises:
        ConnectionError: if they can't be reached, or are not.
    """
    own_host = _reach(cluster.workers)
    return Meeting(own_host, _checked_workers(cluster.workers))


def connect(cluster: Cluster, met: Meeting) -> None:
    """Makes the workers' devices devices of this process.

    Args:
        cluster: the workers.
        met: what `meet` has found of them.

    Raises:
        ConnectionError: if this process can't listen where it should, or answers
            elsewhere too.
        RuntimeError: if this process is connected to others.
    """
    workers = list(cluster.workers)
    if _cluster.workers:
        if _cluster.workers != workers:
            raise RuntimeError(
                "A process connects to one cluster only; it has connected to "
                f"{_cluster.workers}, now got {workers}. Start another process."
            )
        return
    own = cluster.trainer or f"{met.own_host}:0"
    addresses = [] if cluster.listens_on_all else own_addresses(own, workers)
    host, port = own.rpartition(":")[0], split_address(own)[1] or unused_ports(1)[0]
    check_port("The trainer", f"{host}:{port}")
    # It listens before it is connected to all workers.
    with fenced_meanwhile(port, addresses) if addresses else contextlib.nullcontext():
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec({WORKER_JOB: workers, LOCAL_JOB: [f"{host}:{port}"]}),
            job_name=LOCAL_JOB,
            task_index=0,
        )
        tf.config.list_logical_devices()  # Makes the connections.
    _cluster.workers, _cluster.note = workers, met.note(cluster)
    _cluster.incarnations = _incarnations(f"{host}:{port}")


def workers_note() -> str:
    """A line for the user: who the workers are; empty if there are none."""
    return _cluster.note


def incarnation(device: str) -> int:
    """What tells a device from those of its name in processes before and after.

    Whoever sends to another process must say which it is.

    Args:
        device: full name.
    """
    return _cluster.incarnations.get(device, 0)


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
                "--task=<its number> and the same --cluster."
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


def _checked_workers(workers: Sequence[str]) -> tuple[WorkerDescription, ...]:
    """What all workers say; raises ConnectionError unless it is as it should be."""
    found = [_described(f"worker:{i} at {at}", at) for i, at in enumerate(workers)]
    wrong = [
        f"worker:{task} at {workers[task]} ({worker}): {'; '.join(different)}"
        for task, worker in enumerate(found)
        if (different := differences(worker, task, workers, versions()))
    ]
    if wrong:
        raise ConnectionError(
            "All tasks must have the same versions and be given the same --cluster; "
            f"{' and '.join(wrong)}. Start again those that are wrong."
        )
    return tuple(found)


def _described(name: str, address: str) -> WorkerDescription:
    """What a worker says of itself, which it does soon after it can be reached.

    Or as soon as it has finished what it does for a trainer before.
    """
    begin = time.monotonic()
    deadline, last = begin + TO_ANSWER, begin + TO_FINISH
    while True:
        try:
            found = read_worker(address)
        except tf.errors.OpError as error:
            is_late = isinstance(error, tf.errors.DeadlineExceededError)
            if is_late and time.monotonic() < last and is_busy(address):
                continue
            raise ConnectionError(
                f"{name} must answer as a worker; it does not within {TO_ANSWER:.0f} "
                "seconds. Something else listens there, or it hangs: start it again "
                "with --job=worker."
            ) from error
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise ConnectionError(
                f"{name} must be a worker of this version of lingvo_pipe; it is a "
                "TensorFlow server that does not say so. Start it with --job=worker, "
                "of the trainer's version."
            )
        time.sleep(_PAUSE)


def _incarnations(task: str) -> dict[str, int]:
    """Incarnations of all devices that a task knows, by full name, its own first.

    Args:
        task: its address.
    """
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=int(TO_ANSWER * 1000))
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(f"grpc://{task}", config=config) as session,
    ):
        return {device.name: device.incarnation for device in session.list_devices()}
