"""A process returns freed memory to the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lingvo_pipe

ROOT = Path(lingvo_pipe.__file__).parents[1]
# Frees all pieces of memory but the last, above which the C library frees none itself.
PROGRAM = """
import ctypes, time
from pathlib import Path
from lingvo_pipe.fault_tolerance.free_memory import return_free_memory

def used():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
before = used()
pieces = [libc.malloc(2**14) for _ in range(10_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 2**14)
for piece in pieces[:-1]:
    libc.free(piece)
peak = used()
assert peak > before + 10**8, "It was returned at once."
return_free_memory(every=0.1)
end = time.monotonic() + 300
while used() > peak - 10**8 and time.monotonic() < end:
    time.sleep(0.1)
assert used() <= peak - 10**8, used() - before
"""


def test_a_process_does_not_keep_freed_memory() -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        timeout=600,
    )
