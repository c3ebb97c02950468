"""A stage's worker has one core, and ends with the process that started it."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tools.benchmarks

ROOT = Path(tools.benchmarks.__file__).parents[2]


@pytest.mark.parametrize("core", [min(os.sched_getaffinity(0))])
def test_serves_on_its_core_while_its_input_is_open(core: int) -> None:
    with socket.socket() as each:
        each.bind(("localhost", 0))
        address = f"localhost:{each.getsockname()[1]}"
    command = [sys.executable, "-m", "tools.benchmarks.stage_worker"]
    with subprocess.Popen(
        [*command, str(core), "0", address],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert re.search(rf"^worker:0\b.*\b1\b.* {address}\b", line)
        assert os.sched_getaffinity(worker.pid) == {core}
        worker.stdin.close()
        assert worker.wait(60) == 0
