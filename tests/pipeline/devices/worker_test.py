"""A worker has its port and a thread for each core."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lingvo_pipe.pipeline.devices import worker
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster


@pytest.mark.parametrize("is_checked", [True, False], ids=["before", "meanwhile"])
def test_a_port_in_use_is_an_error(
    is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was free when checked: two workers may start at the same moment."""
    if not is_checked:
        monkeypatch.setattr(worker, "check_port", lambda task, address: None)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        named = rf"worker:0\b.*{address}\b.*--cluster\b"
        with pytest.raises(ConnectionError, match=named):
            worker.serve(Cluster((address,)), 0)


@pytest.fixture
def _restored_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_restored_handler")
def test_a_worker_whose_trainer_has_ended_is_not_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm sends SIGTERM after a trainer's exit code that is not 0."""
    nothing = SimpleNamespace(target="", is_given=bool, is_released=bool)
    monkeypatch.setattr(worker, "start_worker", lambda *unused: (nothing, "is fake"))
    monkeypatch.setattr(worker, "Departure", lambda target: nothing)
    monkeypatch.setattr(worker, "ShutdownNotice", lambda target: nothing)
    monkeypatch.setattr(worker, "wait_for_trainers_end", lambda *unused: "It ended.")
    worker.serve(Cluster(("a:1",), "b:1"), 0, ends_with_trainer=True)
    signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().out.endswith("It ended.\n")


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 2), (8, 8)])
def test_a_worker_runs_as_many_operations_at_once_as_it_has_cores(
    num_cores: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.os, "cpu_count", lambda: num_cores)
    config = worker._config()
    assert config.device_count["CPU"] == num_cores
    assert config.inter_op_parallelism_threads == num_threads
