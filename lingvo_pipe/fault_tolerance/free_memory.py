"""Return of a worker's free memory to the system.

A worker may serve many trainers, one after another. The C library keeps the memory of a
former trainer's objects in an arena for each thread, and the next trainer's threads
take new arenas. So without this module, a worker would grow with each trainer.
"""

import ctypes
import threading
import time
from typing import Any


def return_free_memory(every: float = 60.0) -> None:
    """Starts a thread that returns free memory every `every` seconds, if possible."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def repeat() -> None:
        while True:
            time.sleep(every)
            trim(0)

    if trim is not None:
        threading.Thread(target=repeat, daemon=True).start()
