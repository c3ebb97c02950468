"""A bound program has its cores, and ends with the process that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lingvo_pipe

ROOT = Path(lingvo_pipe.__file__).parents[1]
CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys
from lingvo_pipe.tools.bound_process import bound_python
subprocess.run(bound_python([int(sys.argv[1])], "-c", {CHILD!r}))
"""


@pytest.mark.parametrize("core", [min(os.sched_getaffinity(0))])
def test_it_has_its_core_and_ends_with_its_parent(core: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(core)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert os.sched_getaffinity(child) == {core}
        parent.send_signal(signal.SIGKILL)
        end = time.monotonic() + 60
        while _is_running(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert time.monotonic() < end


def _is_running(process: int) -> bool:
    """Tells whether a process has not ended, asked for its exit code or not."""
    try:  # It may end between two looks, so one read decides.
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
