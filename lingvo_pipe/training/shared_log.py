"""A metrics log that several processes write, such as evaluations of two data sets."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from lingvo_pipe.training.metrics_log import MetricsLog
from lingvo_pipe.training.run_lock import LOCK_NAME


@contextlib.contextmanager
def shared_log(directory: Path) -> Iterator[MetricsLog]:
    """Opens the log of a directory for one thing to write; no other process has it.

    It waits until it can be had, so that nobody should keep it for long. The system
    takes it from a process that ends, however it ends.

    Args:
        directory: made if need be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_NAME).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with MetricsLog(directory) as log:
            yield log
