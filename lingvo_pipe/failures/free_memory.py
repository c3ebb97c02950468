"""Gives the memory back that a worker has freed.

What a trainer has made in a worker are many small things. When the worker forgets the
trainer they are freed, but the C library keeps most of the memory, in an arena for each
thread, and the next trainer's threads take new ones: a worker would grow with each
trainer. No TensorFlow.
"""

from __future__ import annotations

import ctypes
import threading
import time

_EVERY = 60.0


def return_free_memory(every: float = _EVERY) -> None:
    """Gives free memory back to the system from now on, on a thread.

    It takes milliseconds, and nothing is done where the C library can't.

    Args:
        every: so many seconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        threading.Thread(target=_go_on, args=[trim, every], daemon=True).start()


def _go_on(trim: ctypes._NamedFuncPointer, every: float) -> None:
    while True:
        time.sleep(every)
        trim(0)
