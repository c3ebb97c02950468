"""Stages on the devices of other processes compute the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lingvo_pipe
from tests.pipeline.devices.free_ports import free_ports

ROOT = Path(lingvo_pipe.__file__).parents[1]
HERE = ["cpu:0", "cpu:1"]
THERE = ["worker:0/cpu:0", "worker:1/cpu:0"]
RUNS = [
    (places, schedule, at_once)
    for schedule, at_once in (("gpipe", False), ("1f1b", False), ("1f1b", True))
    for places in (HERE, THERE, ["worker:1/cpu:0", "cpu:1"])
]


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
def hashes() -> Iterator[list[str]]:
    """Of all variables after some steps of each of RUNS."""
    workers = [f"localhost:{port}" for port in free_ports(2)]
    serve = "from lingvo_pipe.pipeline.devices.worker import serve; serve({!r}, {})"
    processes = [_start("-c", serve.format(workers, task)) for task in range(2)]
    try:
        script = Path(__file__).with_name("train_on_workers.py")
        trainer = _start(str(script), json.dumps(workers), json.dumps(RUNS))
        output, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, errors
        yield json.loads(output)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_bytes_are_the_same_wherever_the_stages_are(hashes: list[str]) -> None:
    assert len(hashes) == len(RUNS)
    assert len(set(hashes)) == 1
