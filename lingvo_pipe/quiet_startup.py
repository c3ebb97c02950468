"""Hides what TensorFlow writes while it starts."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def quiet_startup() -> Iterator[None]:
    """Hides what is written to standard error, by C++ too, unless an error follows.

    TensorFlow reports on each start how it was built and that there is no GPU, whatever
    the level of its log. It is all shown if TF_CPP_MIN_LOG_LEVEL is set.
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
