"""Settings made before TensorFlow is imported. Needs no TensorFlow."""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from lingvo_pipe.core.activity import activity
from lingvo_pipe.core.garbage import collected_seldom

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERROR = re.compile(rb"[EF]\d{4} |[\d-]{10} [\d:.]+: [EF] ")
# Errors of libraries that are linked twice into TensorFlow.
_HARMLESS = re.compile(rb"Unable to register cu|omputation placer already registered")
NVIDIA = "/dev/nvidiactl"  # Exists if NVIDIA's driver is loaded.
_COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"  # TensorFlow's default is 64 GiB.


@contextlib.contextmanager
def quiet_startup() -> Iterator[None]:
    """Hides what TensorFlow logs when it starts, except errors.

    Hides nothing if the block fails, or if TF_CPP_MIN_LOG_LEVEL is 0 or 1.
    """
    if sys.stderr is None or os.environ.get(_LEVEL) in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    shown = os.dup(2)
    with _level("2"), tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        has_failed = False
        try:
            yield
        except BaseException:
            has_failed = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            hidden.seek(0)
            lines = (line for line in hidden if has_failed or _is_error(line))
            os.write(shown, b"".join(lines))
            os.close(shown)


@contextlib.contextmanager
def importing_tensorflow() -> Iterator[None]:
    """Shows that TensorFlow is being imported, and hides its log (`quiet_startup`)."""
    # Unbuffered: closing it writes nothing, which would fail if its reader is gone.
    with (
        io.TextIOWrapper(io.FileIO(os.dup(2), "w"), write_through=True) as stream,
        activity("importing TensorFlow", stream, file_delay=1.0),
        quiet_startup(),
        collected_seldom(),
    ):
        yield


@contextlib.contextmanager
def _level(level: str) -> Iterator[None]:
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = level
    try:
        yield
    finally:
        del os.environ[_LEVEL]


def _is_error(line: bytes) -> bool:
    """Returns whether a line matters. No GPU is an error only if there is a driver."""
    if not _ERROR.match(line) or _HARMLESS.search(line):
        return False
    return may_have_gpu() or b"cuInit" not in line


def may_have_gpu() -> bool:
    """Returns whether NVIDIA's driver is loaded and the user does not hide all GPUs."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return os.path.exists(NVIDIA) and not is_hidden


def count_cpu_memory() -> None:
    """Makes TensorFlow, if imported later, count the memory of all CPU tensors."""
    os.environ.update(_COUNTING)
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    os.environ.setdefault(_LIMIT, str(everything >> 20))


def counts_cpu_memory() -> bool:
    """Returns whether `count_cpu_memory` was called in this process or a parent."""
    return _COUNTING.items() <= os.environ.items()
