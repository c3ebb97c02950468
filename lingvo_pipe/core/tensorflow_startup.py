"""Settings made before TensorFlow is imported. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"  # TensorFlow's default is 64 GiB.


@contextlib.contextmanager
def quiet_startup() -> Iterator[None]:
    """Hides what is written to standard error, by C++ too, unless an error follows.

    TensorFlow reports on each start how it was built and that there is no GPU, at any
    log level. If TF_CPP_MIN_LOG_LEVEL is set, nothing is hidden.
    """
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = "2"  # Warnings and information, from now on.
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(shown, hidden.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def count_cpu_memory() -> None:
    """Chooses the allocator that counts all CPU tensors, not only large ones."""
    os.environ.update(_COUNTING)
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    os.environ.setdefault(_LIMIT, str(everything >> 20))


def counts_cpu_memory() -> bool:
    """Returns whether `count_cpu_memory` was called in this process or a parent."""
    return _COUNTING.items() <= os.environ.items()
