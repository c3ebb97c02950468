"""Stages on the devices of other processes compute the same bytes.

Each worker has its own address, as on its own host.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lingvo_pipe
from lingvo_pipe.pipeline.devices.listener_restriction import (
    attach_filter,
    filter_program,
)
from lingvo_pipe.pipeline.devices.own_addresses import unused_ports

ROOT = Path(lingvo_pipe.__file__).parents[1]
HOSTS = ("127.0.0.2", "127.0.0.3")
OWN_HOST = "127.0.0.4"
SERVE = """
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.worker import serve

serve(Cluster({!r}), {})
"""
HERE = ["cpu:0", "cpu:1"]
THERE = ["worker:0/cpu:0", "worker:1/cpu:0"]
RUNS = [
    (devices, schedule, at_once, offload)
    for schedule, at_once, offload in (
        ("gpipe", False, None),
        ("gpipe", False, "always"),
        ("1f1b", False, None),
        ("1f1b", True, None),
    )
    for devices in (HERE, THERE, ["worker:1/cpu:0", "cpu:1"])
]
pytestmark = pytest.mark.exhaustive


def _start(*arguments: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**environment, "CUDA_VISIBLE_DEVICES": "-1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def results() -> Iterator[tuple[list[str], list[str]]]:
    """Yields hashes of all variables after each run, and the trainer's addresses."""
    *ports, own_port = unused_ports(len(HOSTS) + 1)
    workers = tuple(f"{h}:{p}" for h, p in zip(HOSTS, ports, strict=True))
    tasks = range(len(workers))
    processes = [_start("-c", SERVE.format(workers, task)) for task in tasks]
    try:
        script = Path(__file__).with_name("train_on_workers.py")
        arguments = [workers, RUNS, f"{OWN_HOST}:{own_port}"]
        trainer = _start(str(script), *map(json.dumps, arguments))
        output, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, errors
        yield json.loads(output)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_bytes_do_not_depend_on_the_stages_devices(
    results: tuple[list[str], list[str]],
) -> None:
    hashes, _ = results
    assert len(hashes) == len(RUNS)
    assert len(set(hashes)) == 1


def test_the_trainer_answers_at_its_own_address_alone(
    results: tuple[list[str], list[str]],
) -> None:
    """Without the right to filter, at all addresses of its interface."""
    _, hosts = results
    try:
        with socket.socket() as probe:
            attach_filter(probe, filter_program([OWN_HOST]))
    except PermissionError:
        assert OWN_HOST in hosts
    else:
        assert hosts == [OWN_HOST]
