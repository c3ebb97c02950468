"""A worker that is leaving stays until its trainer no longer uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import departure, handshake
from lingvo_pipe.pipeline.devices.departure import Departure, WorkerUse, is_leaving
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports


class Worker:
    """A worker's server, its departure, and a trainer's use of it."""

    def __init__(self) -> None:
        server = tf.distribute.Server.create_local_server()
        self.address = server.target.removeprefix("grpc://")
        self.now = 0.0
        self.departure = Departure(server.target, lambda: self.now)
        self.use = WorkerUse(["", self.address])


@pytest.fixture(name="worker")
def _worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.use.end([1])


def test_a_worker_that_no_trainer_has_used_ends_at_once(worker: Worker) -> None:
    worker.departure.wait()
    assert not worker.departure.is_released()


def test_a_trainer_sees_that_a_worker_is_leaving_and_lets_it_go(
    worker: Worker,
) -> None:
    assert worker.use.renew([1]) == set()
    assert not is_leaving(worker.address)
    assert worker.departure.is_used()
    assert worker.use.renew([1]) == {1}
    assert is_leaving(worker.address)
    assert not worker.departure.is_released()
    worker.use.end([1])
    assert worker.departure.is_released()
    worker.departure.wait()


def test_a_worker_waits_while_the_trainer_saves(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departure, "_POLL_SECONDS", 0.01)
    worker.use.renew([1])
    leaving = threading.Thread(target=worker.departure.wait)
    leaving.start()
    end = time.monotonic() + 60.0
    while not worker.use.renew([1]):
        assert time.monotonic() < end
    assert leaving.is_alive()
    worker.use.end([1])
    leaving.join(60.0)
    assert not leaving.is_alive()


def test_a_trainer_that_was_killed_uses_no_worker(worker: Worker) -> None:
    worker.use.renew([1])
    assert worker.departure.is_used()
    worker.now = 14.0
    assert worker.departure.is_used()
    worker.use.renew([1])
    worker.now = 28.0
    assert worker.departure.is_used()  # The number has changed.
    worker.now = 44.0
    assert worker.departure.is_released()


def test_workers_that_are_gone_are_not_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 0.5)
    address = f"127.0.0.1:{unused_ports(1)[0]}"
    assert not is_leaving(address)
    assert WorkerUse([address]).renew([0]) == set()


def test_a_worker_whose_server_does_not_answer_ends_after_a_while() -> None:
    """It may run long operations."""
    now = [100.0]
    departure = Departure(f"grpc://127.0.0.1:{unused_ports(1)[0]}", lambda: now[0])
    departure._session = SimpleNamespace(run=_time_out)
    assert departure.is_used()
    now[0] = 159.0
    assert departure.is_used()
    now[0] = 161.0
    assert not departure.is_used()


def _time_out(fetches: object) -> None:
    raise tf.errors.DeadlineExceededError(None, None, "late")
