"""A worker waits for its turns, and ends with who measures."""

import subprocess
import sys
from pathlib import Path

import tools.benchmarks

ROOT = Path(tools.benchmarks.__file__).parents[2]
WAITS = "from tools.benchmarks.turns import Turns; Turns().wait(); print('goes on')"


def test_without_anybody_who_measures_a_worker_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert run.stdout == "ready\n"
    assert "goes on" not in run.stderr


def test_what_is_printed_is_no_answer() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        input="\n",
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    assert run.stdout == "ready\n"
    assert run.stderr == "goes on\n"
