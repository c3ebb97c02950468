"""Other programs' load on the cores is counted; this process's is not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.benchmarks.system_load import OtherPrograms

pytestmark = pytest.mark.exhaustive


_SECONDS = 1.0


@pytest.fixture
def core() -> Iterator[int]:
    """Returns the one core that this process has."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def _processor_seconds(pid: int) -> float:
    """Returns user and system time, as the kernel counts it in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _compute() -> None:
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        pass


def test_another_program_counts(core: int) -> None:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        others, others_but_it = (
            OtherPrograms([core]),
            OtherPrograms([core], [other.pid]),
        )
        with others, others_but_it:
            own_start, start = _processor_seconds(other.pid), time.perf_counter()
            time.sleep(_SECONDS)
            seconds = time.perf_counter() - start
            its_share = (_processor_seconds(other.pid) - own_start) / seconds
        # Whatever else runs, the kernel leaves no core idle that a program can use.
        assert 0.8 < others.num_cores() <= 1.1
        # A helper of this process does not count.
        assert others_but_it.num_cores() <= 1.1 - its_share
    finally:
        other.kill()
        other.wait()


def test_only_load_while_entered_counts(core: int) -> None:
    others = OtherPrograms([core])
    with others:
        time.sleep(_SECONDS / 10)
    before = others.num_cores()
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(_SECONDS)
    finally:
        other.kill()
        other.wait()
    assert others.num_cores() == before


def test_its_own_work_does_not(core: int) -> None:
    others = OtherPrograms([core])
    with others:
        own_start, start = time.process_time(), time.perf_counter()
        _compute()
        own_share = (time.process_time() - own_start) / (time.perf_counter() - start)
    assert others.num_cores() <= 1.1 - own_share
