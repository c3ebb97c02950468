"""Connection of a trainer to its workers, on whose devices stages run.

    trainer (localhost) --gRPC-- worker:0 --gRPC-- worker:1 --gRPC-- ...

The trainer and its workers are a TensorFlow cluster: the workers' devices become
devices of the trainer's process. Each task reaches each other task by its address. If
the user gives no address for the trainer, the trainer has the address that workers see.
"""

import contextlib
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserClusterError,
    UserConnectionError,
    UserRuntimeError,
    Words,
)
from lingvo_pipe.pipeline.devices.answered_sources import (
    answered_note,
    answered_sources,
)
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, split_address
from lingvo_pipe.pipeline.devices.device_kind import (
    DeviceKind,
    local_kind,
    num_threads,
    without_host,
)
from lingvo_pipe.pipeline.devices.device_names import LOCAL_JOB, WORKER_JOB, device_name
from lingvo_pipe.pipeline.devices.handshake import (
    ANSWER_SECONDS,
    FINISH_SECONDS,
    WorkerDescription,
    device_kind_key,
    differences,
    is_busy,
    read_worker,
    server_session,
    versions,
)
from lingvo_pipe.pipeline.devices.listener_restriction import (
    restrict_listeners,
    restricting_early,
)
from lingvo_pipe.pipeline.devices.own_addresses import (
    check_port,
    is_loopback,
    own_addresses,
    unused_ports,
)

# Seconds in which starting workers must come up.
_PATIENCE = 10.0
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 1.0

# HTTP/2 (RFC 9113, section 3.4): a client's first bytes, with an empty frame of
# settings. The server's are a frame of settings too, whose fourth byte is its type.
_SETTINGS = b"\4"
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + bytes(5)
_FRAME_TYPE = slice(3, 4)
_NUM_SHOWN = 40


@dataclass
class _Connection:
    """The connection of this process to a cluster. A process has at most one."""

    workers: dict[int, str] = field(default_factory=dict)  # Addresses by task.
    descriptions: Mapping[int, WorkerDescription] = field(default_factory=dict)
    note: str = ""  # For the user.
    incarnations: dict[str, int] = field(default_factory=dict)  # By full name.


_connection = _Connection()


@dataclass(frozen=True)
class ReadyWorkers:
    """Workers that are ready for a trainer to connect to them."""

    own_host: str  # This machine's address, as the workers see it.
    workers: Mapping[int, WorkerDescription]  # By task.

    def note(self, cluster: Cluster) -> str:
        """Returns a line for the user about the workers."""
        return "workers: " + "; ".join(
            f"{_name(task, cluster.workers[task])} ({worker})"
            for task, worker in self.workers.items()
        )


def check_servers(workers: Mapping[int, str]) -> None:
    """Raises ConnectionError if a server at a worker's address is not TensorFlow's."""
    for task, worker in workers.items():
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(
                split_address(worker), timeout=_CONNECT_SECONDS
            ) as connection,
        ):
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(_NUM_SHOWN)
        if answer and answer[_FRAME_TYPE] != _SETTINGS:
            raise UserConnectionError(
                path=_name(task, worker),
                expected="a TensorFlow server",
                got=Words(f"an answer that begins with {answer!r}"),
                hint="Give the worker's own port in --cluster, and start it with "
                "--job=worker.",
            )


def find_workers(cluster: Cluster, awaits_busy: bool = True) -> ReadyWorkers:
    """Waits until all workers that are used answer, and returns their descriptions.

    Waits minutes for a worker that is still busy, unless `awaits_busy` is False.

    Raises:
        ConnectionError: if a worker is missing or unexpected.
    """
    host = _reach(cluster.present)
    return ReadyWorkers(host, _checked_workers(cluster, awaits_busy))


def connect(cluster: Cluster, ready: ReadyWorkers) -> None:
    """Makes the devices of ready workers devices of this process.

    Raises:
        ConnectionError: if this process cannot listen at its address alone.
        RuntimeError: if this process is connected to other workers.
    """
    workers = cluster.present
    if _connection.workers == workers:
        return
    if _connection.workers:
        before = list(_connection.workers.values())
        raise UserRuntimeError(
            path="workers",
            expected=f"those that this process is connected to, {before}",
            got=list(workers.values()),
            hint="Start another process.",
        )
    trainer = cluster.trainer or f"{ready.own_host}:0"
    addresses = []
    if not cluster.listens_on_all:
        addresses = own_addresses(trainer, list(workers.values()))
    sources = answered_sources(cluster)
    host = trainer.rpartition(":")[0]
    port = split_address(trainer)[1] or unused_ports(1)[0]
    check_port("The trainer", f"{host}:{port}")
    # The trainer listens before it is connected to all workers.
    with (
        restricting_early(port, addresses, sources.ips)
        if addresses
        else contextlib.nullcontext()
    ):
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec({WORKER_JOB: workers, LOCAL_JOB: [f"{host}:{port}"]}),
            job_name=LOCAL_JOB,
            task_index=0,
        )
        tf.config.list_logical_devices()  # Makes the connections.
    is_filtered = bool(addresses) and restrict_listeners(port, addresses, sources.ips)
    answered = answered_note(cluster, sources, is_filtered)
    _connection.note = f"{ready.note(cluster)}; the trainer {answered}"
    _connection.workers, _connection.descriptions = workers, ready.workers
    _connection.incarnations = _incarnations(f"{host}:{port}")


def workers_note() -> str:
    """Returns a line for the user about the workers, or "" if there are none."""
    return _connection.note


def incarnation(device: str) -> int:
    """Returns TensorFlow's incarnation number of a device, or 0 without workers."""
    return _connection.incarnations.get(device, 0)


def device_kinds(devices: Iterable[str], on_hosts: bool = False) -> list[DeviceKind]:
    """Returns the distinct kinds of devices. `devices` are full names of devices.

    If `on_hosts`, the hosts of GPUs compute results too, and their processors count.
    """
    by_key: dict[tuple[int | None, str], DeviceKind] = {}
    for name in map(device_name, devices):
        key = device_kind_key(name)
        if (name.worker, key) not in by_key:
            by_key[name.worker, key] = (
                local_kind(name, num_threads())
                if name.worker is None
                else _connection.descriptions[name.worker].device_kinds[key]
            )
    kinds = list(by_key.values())
    if not on_hosts:
        kinds = list(map(without_host, kinds))
    distinct = {tuple(sorted(kind.items())): kind for kind in kinds}
    return list(distinct.values())


def _reach(workers: Mapping[int, str]) -> str:
    hosts: dict[str, str] = {}
    deadline = time.monotonic() + _PATIENCE
    while True:
        for worker in workers.values():
            own_host = None if worker in hosts else _own_host(worker)
            if own_host is not None:
                hosts[worker] = own_host
        absent = [
            _name(task, worker)
            for task, worker in workers.items()
            if worker not in hosts
        ]
        if not absent:
            # The first that is not loopback, if there is one.
            return min(hosts.values(), key=lambda host: is_loopback(host.strip("[]")))
        if time.monotonic() > deadline:
            raise UserClusterError(
                f"Cannot reach {', '.join(absent)} within {_PATIENCE:.0f} seconds.",
                hint="Start each with --job=worker --task=<its number> and the same "
                "--cluster, before the trainer, on the machines that it names: if it "
                "names a trainer, tasks answer only these.",
            )
        time.sleep(_POLL_SECONDS)


def _own_host(worker: str) -> str | None:
    """Returns this machine's address as `worker` sees it, or None without an answer."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(
            split_address(worker), timeout=_CONNECT_SECONDS
        ) as connection,
    ):
        host = connection.getsockname()[0]
        return f"[{host}]" if ":" in host else host
    return None


def _checked_workers(
    cluster: Cluster, awaits_busy: bool
) -> dict[int, WorkerDescription]:
    descriptions = {
        task: _description(_name(task, address), address, awaits_busy)
        for task, address in cluster.present.items()
    }
    wrong = [
        f"{_name(task, cluster.workers[task])} ({worker}): {'; '.join(different)}"
        for task, worker in descriptions.items()
        if (different := differences(worker, task, cluster.workers, versions()))
    ]
    if wrong:
        raise UserConnectionError(
            path="workers",
            expected="the versions and the --cluster of the trainer",
            got=Words(" and ".join(wrong)),
            hint="Restart the wrong ones.",
        )
    return descriptions


def _description(
    name: str, address: str, awaits_busy: bool = True
) -> WorkerDescription:
    begin = time.monotonic()
    deadline, last = begin + ANSWER_SECONDS, begin + FINISH_SECONDS * awaits_busy
    while True:
        try:
            description = read_worker(address)
        except tf.errors.OpError as error:
            is_late = isinstance(error, tf.errors.DeadlineExceededError)
            if is_late and time.monotonic() < last and is_busy(address):
                continue
            raise UserClusterError(
                path=name,
                expected=f"a worker's answer within {ANSWER_SECONDS:.0f} seconds",
                hint="It is busy, or it hangs, or another program listens there. If it "
                "stays so, restart it with --job=worker.",
            ) from error
        if description is not None:
            return description
        if time.monotonic() > deadline:
            raise UserConnectionError(
                path=name,
                expected="a worker of this version of lingvo_pipe",
                got=Words("another TensorFlow server"),
                hint="Start it with --job=worker, in the trainer's version.",
            )
        time.sleep(_POLL_SECONDS)


def _name(task: int, address: str) -> str:
    return f"{WORKER_JOB}:{task} at {address}"


def _incarnations(address: str) -> dict[str, int]:
    target = f"grpc://{address}"
    with tf.Graph().as_default(), server_session(target, sees_all=True) as session:
        return {device.name: device.incarnation for device in session.list_devices()}
