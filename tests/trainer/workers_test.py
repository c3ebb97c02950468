"""A run whose stages are on workers is one that has them at home."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports
from tests.support.command_line import (
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)
from tests.support.forked_process import ForkedProcess

STEPS = 3
DEVICES = "--devices=worker:0/cpu:0,worker:1/cpu:0"
OFTEN = "--model_params_override=task.train.save_interval_steps : 1"


class Cluster:
    """Two workers on this machine.

    Attributes:
        flag: what trainers are told.
        addresses: where they are.
        command_line: runs the trainers.
        workers: their processes.
    """

    def __init__(self, folder: Path):
        self.addresses = [f"localhost:{port}" for port in unused_ports(2)]
        self.flag = f"--cluster_spec=worker={','.join(self.addresses)}"
        write_small_model(folder)
        self.command_line = CommandLine(folder)
        self.workers = [
            self.command_line.start_trainer("--job=worker", f"--task={i}", self.flag)
            for i in range(2)
        ]

    def wait_for(self, task: int) -> None:
        """Waits until a worker accepts connections."""
        host, port = self.addresses[task].split(":")
        while True:
            with contextlib.suppress(ConnectionError):
                socket.create_connection((host, int(port))).close()
                return
            time.sleep(0.1)

    def start_trainer(self, logdir: str, *flags: str) -> ForkedProcess:
        """Starts a run on the workers."""
        return self.command_line.start_trainer(
            SMALL, self.flag, DEVICES, f"--logdir={logdir}", *flags
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("workers"))
    yield cluster
    for worker in cluster.workers:
        worker.kill()
        worker.communicate()


@pytest.fixture(scope="module")
def folder(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run `there`, on the workers, and a run `here`, on one device."""
    folder = tmp_path_factory.mktemp("runs")
    here = f"--logdir={folder / 'here'}"
    with ThreadPoolExecutor() as pool:
        local = pool.submit(cluster.command_line.train, SMALL, "--devices=1", here)
        trainer = cluster.start_trainer(str(folder / "there"))
        output, errors = trainer.communicate()
        local.result()
    assert trainer.returncode == 0, errors
    assert "stages: 2 (worker:0/cpu:0, worker:1/cpu:0)" in output
    return folder


def test_workers_say_where_they_are(cluster: Cluster) -> None:
    for i, worker in enumerate(cluster.workers):
        assert worker.stdout is not None
        where = cluster.addresses[i]
        assert re.match(rf"worker:{i}\b.*\b2\b.*{where}\b", worker.stdout.readline())


def test_checkpoints_have_the_same_bytes(folder: Path) -> None:
    there = saved_variables(folder / "there", STEPS)
    assert there == saved_variables(folder / "here", STEPS)
    text = (folder / "there" / "metrics.jsonl").read_text()
    assert text == (folder / "here" / "metrics.jsonl").read_text()


@pytest.mark.exhaustive
def test_replicas_on_workers_leave_the_bytes_of_one_device(
    cluster: Cluster, tmp_path: Path
) -> None:
    two_parts = f"{OFTEN}; task.pipeline.splits : 1; task.pipeline.num_batch_shards : 2"
    trainer = cluster.start_trainer(
        str(tmp_path / "there"), f"{two_parts}; task.pipeline.num_replicas : 2"
    )
    _, errors = trainer.communicate()
    assert trainer.returncode == 0, errors
    cluster.command_line.train(
        SMALL, "--devices=1", f"--logdir={tmp_path / 'here'}", two_parts
    )
    there = saved_variables(tmp_path / "there", STEPS)
    assert there == saved_variables(tmp_path / "here", STEPS)


def _start_and_save(cluster: Cluster, logdir: Path, *flags: str) -> ForkedProcess:
    """Starts a run that has no end; returns when it has saved a checkpoint."""
    long = "--max_steps=90000"
    trainer = cluster.start_trainer(str(logdir), long, OFTEN, *flags)
    while trainer.poll() is None and not list(logdir.glob("checkpoints/*.index")):
        time.sleep(0.05)
    return trainer


@pytest.mark.exhaustive
def test_who_waits_for_a_stopped_worker_can_be_asked_to_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The step that it is in never ends."""
    logdir = tmp_path / "stopped"
    trainer = _start_and_save(cluster, logdir, "--worker_timeout_seconds=3")
    cluster.workers[1].send_signal(signal.SIGSTOP)
    try:
        trainer.send_signal(signal.SIGTERM)
        output, _ = trainer.communicate(timeout=60)
    finally:
        cluster.workers[1].send_signal(signal.SIGCONT)
    assert trainer.returncode == 128 + signal.SIGTERM
    where = cluster.addresses[1]
    assert re.search(rf"worker:1 at {where}\b.*\b3 seconds\b", output)
    last = output.splitlines()[-1]
    assert re.match(r"Stopped\b.*\bSIGTERM\b", last)


@pytest.mark.exhaustive
def test_a_worker_that_stays_away_ends_the_run_in_one_line(
    folder: Path, cluster: Cluster
) -> None:
    """And the run goes on from its last checkpoint, here without any worker."""
    logdir = folder / "lost"
    trainer = _start_and_save(cluster, logdir, "--wait_for_workers_seconds=3")
    cluster.workers[1].kill()
    output, errors = trainer.communicate(timeout=120)
    assert trainer.returncode == UserClusterError.exit_code
    (line,) = re.findall("^error: .*", errors, re.MULTILINE)
    named = f"worker:1 at {cluster.addresses[1]}"
    assert re.search(rf"{named}\b.*\bgone\b", output)
    assert re.search(rf"{named}\b.*\b3 seconds\b", line)
    assert "Traceback" not in errors
    (newest,) = sorted(logdir.glob("checkpoints/*.index"))[-1:]
    step = int(newest.stem.removeprefix("ckpt-"))
    output, _ = cluster.command_line.train(
        SMALL,
        "--devices=2",
        f"--logdir={logdir}",
        f"--max_steps={step + 1}",
        OFTEN,
    )
    assert re.search(rf"(?m)^Resumed\b.*\b{step}\b", output)


def test_a_worker_ends_when_asked_to(cluster: Cluster) -> None:
    """By a handler: a container's first process has no default that ends it.

    The kernel may give the signal to any thread of a process that was stopped and
    continues. The main thread slept on then.
    """
    (worker, *_) = cluster.workers  # Another test has ended the second.
    cluster.wait_for(0)
    _, *others = sorted(int(x.name) for x in Path(f"/proc/{worker.pid}/task").iterdir())
    os.kill(others[0], signal.SIGTERM)
    assert worker.wait(timeout=60) == 128 + signal.SIGTERM
