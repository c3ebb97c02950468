"""A trainer accepts only its workers, and they answer only where they should."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserClusterError, UserConnectionError
from lingvo_pipe.pipeline.devices import cluster as trainer_side, handshake
from lingvo_pipe.pipeline.devices.cluster import check_servers, find_workers
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.handshake import (
    ShutdownNotice,
    WorkerDescription,
    announce_shutdown,
    announcing_shutdown,
    differences,
    parse_description,
)
from lingvo_pipe.pipeline.devices.own_addresses import answers, unused_ports
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.devices.worker import start_worker
from tests.support.errors import fails

HOSTS = ("127.0.0.2", "127.0.0.3")


def _cluster() -> Cluster:
    ports = unused_ports(len(HOSTS))
    return Cluster(tuple(f"{h}:{p}" for h, p in zip(HOSTS, ports, strict=True)))


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Returns a cluster of two workers that end with this process."""
    cluster = _cluster()
    workers = [start_worker(cluster, task)[0] for task in range(2)]
    assert len(workers) == 2
    return cluster


def test_workers_describe_themselves(cluster: Cluster) -> None:
    ready = find_workers(cluster)
    for task, worker in ready.workers.items():
        assert (worker.task, worker.workers) == (task, cluster.workers)
        assert (worker.host, worker.pid) == (socket.gethostname(), os.getpid())
        assert worker.counts()["CPU"] == os.cpu_count()
    for task, address in enumerate(cluster.workers):
        who = rf"worker:{task} .*{address}.*{socket.gethostname()}\b.*\b{os.getpid()}\b"
        assert re.search(who, ready.note(cluster))


def test_workers_answer_at_their_own_address_alone(cluster: Cluster) -> None:
    for own, address in zip(HOSTS, cluster.workers, strict=True):
        port = int(address.rpartition(":")[2])
        for host in ("127.0.0.1", *HOSTS, "::1"):
            assert answers(host, port, 0.2) == (host == own), f"{host}:{port}"


@pytest.mark.exhaustive
def test_workers_learn_that_their_trainer_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 1.0)  # Of the one that is gone.
    cluster = _cluster()
    workers = [start_worker(cluster, task)[0] for task in range(2)]
    notices = [ShutdownNotice(worker.target) for worker in workers]
    gone = Cluster((f"127.0.0.2:{unused_ports(1)[0]}", *cluster.workers))

    def fail() -> None:
        with announcing_shutdown(gone):
            assert not any(each.is_given() for each in notices)
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - The trainer's own error.
        fail()
    assert all(each.is_given() for each in notices)


@contextlib.contextmanager
def _busy(target: str) -> Iterator[threading.Event]:
    """Keeps all threads of a server of this process at work until the event is set."""
    started, end = threading.Semaphore(0), threading.Event()

    def work() -> np.int32:
        started.release()
        end.wait()
        return np.int32(0)

    number = 2 * max(2, os.cpu_count() or 1)
    with tf.Graph().as_default() as graph:
        works = [tf.numpy_function(work, [], tf.int32) for _ in range(number)]
        session = tf.compat.v1.Session(target, graph)
    working = threading.Thread(target=session.run, args=[works])
    working.start()
    started.acquire()
    try:
        yield end
    finally:
        end.set()
        working.join()
        session.close()


def _open_worker() -> tuple[tf.distribute.Server, str]:
    """Returns a worker, and its address for sessions that really send messages."""
    (port,) = unused_ports(1)
    cluster = Cluster((f"127.0.0.2:{port}",), None, True)
    return start_worker(cluster, 0)[0], f"127.0.0.1:{port}"


@pytest.mark.exhaustive
def test_a_worker_that_is_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, address = _open_worker()
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 0.5)
    with _busy(worker.target) as end:
        with pytest.raises(tf.errors.DeadlineExceededError):
            handshake.read_worker(address)
        threading.Timer(1.0, end.set).start()
        assert trainer_side._description("worker:0", address).pid == os.getpid()
    monkeypatch.setattr(trainer_side, "FINISH_SECONDS", 1.0)
    with _busy(worker.target), fails(UserClusterError, path="worker:0"):
        trainer_side._description("worker:0", address)


def test_a_busy_worker_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    late = tf.errors.DeadlineExceededError(None, None, "late")
    monkeypatch.setattr(trainer_side, "_reach", lambda workers: "h")
    monkeypatch.setattr(trainer_side, "read_worker", Mock(side_effect=late))
    monkeypatch.setattr(trainer_side, "is_busy", Mock(side_effect=AssertionError))
    with fails(UserClusterError, path="worker:0 at a:1"):
        find_workers(Cluster(("a:1",)), awaits_busy=False)


@pytest.mark.exhaustive
def test_a_busy_worker_has_no_shutdown_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, address = _open_worker()
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 0.5)
    notice = ShutdownNotice(worker.target)
    with _busy(worker.target) as end:
        threading.Timer(1.0, end.set).start()
        assert not notice.is_given()
    assert not notice.is_given()
    announce_shutdown([address])
    assert notice.is_given()


def test_workers_of_another_cluster_or_number_are_refused(cluster: Cluster) -> None:
    zero, one = cluster.workers
    with fails(UserConnectionError, path="workers") as raised:
        find_workers(Cluster((one, zero)))
    text = raised.value.got
    for task, address in enumerate((one, zero)):
        tasks = rf"worker:{1 - task}\D*worker:{task}\D*{zero},{one}\D*{one},{zero}\b"
        assert re.search(rf"worker:{task}\D*{address}\b.*?{tasks}", text)
    with fails(UserConnectionError, path="workers") as raised:
        find_workers(Cluster((zero,)))
    assert f"workers {zero},{one} there, {zero} here" in raised.value.got


def test_workers_of_other_versions_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"lingvo_pipe": "9.9", "tensorflow": "1.0"}
    monkeypatch.setattr(trainer_side, "versions", lambda: others)
    here = handshake.versions()
    found = (
        rf"lingvo_pipe {re.escape(here['lingvo_pipe'])}\D*9\.9\D*"
        rf"tensorflow {re.escape(here['tensorflow'])}\D*1\.0\b"
    )
    with pytest.raises(ConnectionError, match=found):
        find_workers(cluster)


def test_devices_that_a_worker_lacks_are_refused(cluster: Cluster) -> None:
    process = rf"\b{os.getpid()}\b.*\bCPU\b"
    absent = rf"worker:0/gpu:0\b.*{process}.*worker:1/cpu:999\b.*{process}"
    with fails(path="devices") as error:
        initialize_devices(["worker:0/gpu:0", "worker:1/cpu:999"], cluster)
    assert re.match(absent, error.value.got)
    with fails(path="devices", got=999) as error:
        initialize_devices(999, cluster)
    assert f"worker:1 {os.cpu_count()}" in error.value.expected


def test_a_tensorflow_server_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_side, "ANSWER_SECONDS", 0.5)
    server = tf.distribute.Server.create_local_server()
    address = server.target.removeprefix("grpc://")
    named = f"worker:0 at {address}"
    with fails(UserConnectionError, path=named, got="another TensorFlow server"):
        find_workers(Cluster((address,)))


def test_another_listener_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("localhost", 0)) as other:
        address = f"localhost:{other.getsockname()[1]}"
        with fails(UserClusterError, path=f"worker:0 at {address}"):
            find_workers(Cluster((address,)))


def test_what_speaks_another_protocol_is_refused_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_servers(cluster.present)
    with socket.create_server(("localhost", 0)) as other:
        address = f"localhost:{other.getsockname()[1]}"
        monkeypatch.setattr(trainer_side, "_CONNECT_SECONDS", 0.1)
        check_servers({0: address})  # Silent, as a busy worker is.
        other.accept()[0].close()
        monkeypatch.setattr(trainer_side, "_CONNECT_SECONDS", 60.0)

        def greet() -> None:
            with other.accept()[0] as client:
                client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        with fails(UserConnectionError, path=f"worker:2 at {address}") as error:
            check_servers({**cluster.present, 2: address})
        assert "SSH-2.0" in error.value.got
        greeter.join()


def test_a_worker_may_describe_itself_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may find it between its start and its description."""
    server = tf.distribute.Server.create_local_server()
    address = server.target.removeprefix("grpc://")
    cluster = Cluster((address,))
    monkeypatch.setattr(handshake, "WORKER_JOB", "local")
    clock = SimpleNamespace(
        monotonic=lambda: 0.0,
        sleep=lambda _: handshake.describe_worker(server.target, cluster, 0),
    )
    monkeypatch.setattr(trainer_side, "time", clock)
    assert find_workers(cluster).workers[0].pid == os.getpid()


def test_sessions_are_closed_after_use(cluster: Cluster) -> None:
    with tf.Graph().as_default():
        with handshake.server_session(f"grpc://{cluster.workers[0]}") as session:
            assert session.list_devices()
        with pytest.raises(RuntimeError, match="closed"):
            session.run(tf.constant(1))


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        (["127.0.0.1", "10.0.0.5", "10.0.0.6"], "10.0.0.5"),
        (["127.0.0.2", "[::1]"], "127.0.0.2"),
        (["[::1]", "[fd00::1]"], "[fd00::1]"),
    ],
)
def test_a_trainer_has_the_address_that_other_machines_see(
    hosts: list[str], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict(enumerate(hosts))
    monkeypatch.setattr(trainer_side, "_own_host", lambda worker: seen[int(worker)])
    assert trainer_side._reach({i: str(i) for i in seen}) == first


def test_a_worker_describes_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("0", "CPU"), ("0", "GPU"), ("0", "XLA_CPU"), ("1", "GPU")]
    devices = [
        SimpleNamespace(
            name=f"/job:worker/replica:0/task:{task}/device:{kind}:0", device_type=kind
        )
        for task, kind in kinds
    ]
    monkeypatch.setattr(handshake._Session, "list_devices", lambda session: devices)
    monkeypatch.setattr(
        handshake, "local_kind", lambda name, threads: {"type": name.kind}
    )
    server = tf.distribute.Server.create_local_server()
    address = server.target.removeprefix("grpc://")
    handshake.describe_worker(server.target, Cluster((address,)), 0)
    description = handshake.read_worker(address)
    assert description is not None
    assert description.kinds == ("CPU", "GPU")


@pytest.mark.parametrize("is_open", [False, True])
def test_only_a_cluster_that_says_so_listens_on_all_addresses(is_open: bool) -> None:
    (port,) = unused_ports(1)
    worker, _ = start_worker(Cluster((f"127.0.0.2:{port}",), None, is_open), 0)
    assert worker.target
    assert answers("127.0.0.1", port, 0.5) == is_open


WORKERS = ("a:1", "b:1")
OURS = {"lingvo_pipe": "1", "tensorflow": "2"}
KINDS = {"CPU": {"type": "CPU", "threads": "1"}, "GPU:0": {"type": "GPU"}}
WORKER = WorkerDescription("1", "2", 1, WORKERS, ("CPU", "CPU", "GPU"), KINDS, "h", 7)


def test_a_description_is_parsed_as_it_was_written() -> None:
    assert parse_description(WORKER.to_json()) == WORKER
    assert str(WORKER) == "host h, process 7, 2 CPU, 1 GPU"


@pytest.mark.parametrize(
    "text", ["", "3", "{", "null", '["task"]', json.dumps({"task": 1})]
)
def test_other_texts_are_no_descriptions(text: str) -> None:
    assert parse_description(text) is None


def test_descriptions_of_other_versions_are_not_parsed() -> None:
    values = json.loads(WORKER.to_json())
    assert parse_description(json.dumps({**values, "more": 1})) is None
    for name in ("workers", "device_kinds"):
        assert parse_description(json.dumps({**values, name: 1})) is None
    del values["pid"]
    assert parse_description(json.dumps(values)) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"lingvo_pipe": "0"}, ["lingvo_pipe 0 there, 1 here"]),
        ({"tensorflow": "1"}, ["tensorflow 1 there, 2 here"]),
        ({"task": 0}, ["worker:0 there, worker:1 here"]),
        ({"workers": ("b:1", "a:1")}, ["workers b:1,a:1 there, a:1,b:1 here"]),
        (
            {"lingvo_pipe": "0", "task": 5},
            ["lingvo_pipe 0 there, 1 here", "worker:5 there, worker:1 here"],
        ),
        ({"host": "other", "pid": 8, "kinds": ()}, []),
    ],
)
def test_each_relevant_difference_is_named(
    change: dict[str, Any], expected: list[str]
) -> None:
    assert differences(replace(WORKER, **change), 1, list(WORKERS), OURS) == expected
