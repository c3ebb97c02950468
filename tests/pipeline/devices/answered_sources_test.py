"""A task whose cluster has all addresses answers the cluster's tasks alone."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from lingvo_pipe.pipeline.devices import answered_sources as module
from lingvo_pipe.pipeline.devices.answered_sources import (
    Sources,
    answer_later,
    answered_note,
    answered_sources,
)
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from tests.support.cases import exhaustive
from tests.support.network_hosts import Host, network_hosts

WORKERS = ("127.0.0.2:2222", "192.0.2.7:2222")
CLUSTER = Cluster(WORKERS, "192.0.2.9:2222")
PATIENCE = 300.0  # Seconds, on a busy machine.


def test_sources_are_the_tasks_addresses_and_this_machines_own_on_the_way() -> None:
    found = answered_sources(CLUSTER)
    assert {"127.0.0.2", "192.0.2.7", "192.0.2.9"} <= set(found.ips)
    assert "127.0.0.1" in found.ips  # From which this machine sends to 127.0.0.2.
    assert not found.unknown


def test_everyone_is_answered_without_the_trainers_address_or_by_flag() -> None:
    for cluster in (Cluster(WORKERS), Cluster(WORKERS, WORKERS[0], True)):
        assert answered_sources(cluster) == Sources()
        assert "only" not in answered_note(cluster, Sources(), True)


def test_the_note_names_whom_a_task_answers() -> None:
    few, many = Sources(("10.0.0.1",)), Sources(tuple(f"10.0.0.{i}" for i in range(9)))
    assert "only 10.0.0.1" in answered_note(CLUSTER, few, True)
    assert "5 more" in answered_note(CLUSTER, many, True)
    assert "CAP_NET_ADMIN" in answered_note(CLUSTER, few, False)


# An exception ends the thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tasks_are_let_in_as_their_names_become_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while a name that was known is not known for a moment, and if it changes."""
    names, is_over = {"a": "10.0.0.1"}, False

    def look_up(host: str, *unused: object) -> list[tuple[object, ...]]:
        if is_over:
            raise SystemExit
        if host not in names:
            raise socket.gaierror
        return [(0, 0, 0, "", (names[host], 0))]

    restricted: list[tuple[str, ...]] = []
    monkeypatch.setattr(module.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(module, "route_source", lambda task: None)
    for name in ("_POLL_SECONDS", "_ALL_SECONDS", "_TASK_SECONDS"):
        monkeypatch.setattr(module, name, 0.01)
    monkeypatch.setattr(
        module, "restrict_listeners", lambda *given: restricted.append(given[2])
    )
    cluster = Cluster(("a:1", "b:1"), "c:1")
    sources = answered_sources(cluster)
    assert sources == Sources(("10.0.0.1",), ("c:1", "b:1"))
    thread = answer_later(cluster, 1, ["10.0.0.1"], sources)
    del names["a"]
    names["b"] = "10.0.0.2"
    _wait_until(lambda: len(restricted) == 1)
    names["c"], names["a"] = "10.0.0.3", "10.0.0.1"
    _wait_until(lambda: len(restricted) == 2)
    names["b"] = "10.0.0.4"  # A pod comes back under its name.
    _wait_until(lambda: len(restricted) == 3)
    is_over = True
    thread.join(PATIENCE)
    assert restricted == [
        ("10.0.0.1", "10.0.0.2"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"),
    ]


# An exception ends the thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_each_second_only_names_that_were_never_known_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that does not exist yet once made all tasks look up all names."""
    asked: Counter[str] = Counter()

    def look_up(host: str, *unused: object) -> list[tuple[object, ...]]:
        asked[host] += 1
        if asked["b"] > 5:
            raise SystemExit
        if host == "b":
            raise socket.gaierror
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(module.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(module, "route_source", lambda task: None)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(module, "_ALL_SECONDS", PATIENCE)
    cluster = Cluster(("a:1", "b:1"), "c:1")
    thread = answer_later(cluster, 1, ["10.0.0.1"], answered_sources(cluster))
    thread.join(PATIENCE)
    assert asked == {"a": 1, "b": 6, "c": 1}


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


_SERVE = """
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve

serve(Cluster(({!r},), {!r}), 0)
"""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network_hosts() as found:
        yield found


@pytest.mark.parametrize("has_trainer", [True, exhaustive(False)])
def test_a_worker_answers_the_hosts_of_its_cluster_alone(
    hosts: list[Host], has_trainer: bool
) -> None:
    """The second host has the trainer's address, the third has none."""
    worker, trainer = (f"{host.ip}:2222" for host in hosts[:2])
    code = _SERVE.format(worker, trainer if has_trainer else None)
    with hosts[0].start("-c", code) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert (hosts[1].ip in line) == has_trainer
            assert hosts[0].connects(worker)
            assert hosts[1].connects(worker)
            assert hosts[2].connects(worker) == (not has_trainer)
        finally:
            process.kill()
