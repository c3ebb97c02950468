"""Who else uses the cores is seen; what this process does is not counted."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tools.benchmarks.other_programs import OtherPrograms

_SECONDS = 1.0


@pytest.fixture
def core() -> Iterator[int]:
    """The one core that this process has."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def _compute() -> None:
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        pass


def test_another_program_counts(core: int) -> None:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        others = OtherPrograms([core])
        time.sleep(_SECONDS)
        # Whatever else runs, nobody leaves a core idle that a program wants.
        assert 0.8 < others.num_cores() <= 1.1
    finally:
        other.kill()
        other.wait()


def test_its_own_work_does_not(core: int) -> None:
    others = OtherPrograms([core])
    own_start, start = time.process_time(), time.perf_counter()
    _compute()
    own_share = (time.process_time() - own_start) / (time.perf_counter() - start)
    assert others.num_cores() <= 1.1 - own_share
