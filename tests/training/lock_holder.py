"""A process that holds a run's lock. It starts fast, as it needs no TensorFlow."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

from lingvo_pipe.training.run.run_directory import RunDirectory


def hold_lock(directory: Path, pipe: Connection) -> None:
    """Locks a run's directory, sends the process's number, and waits to be killed."""
    lock = RunDirectory(directory, "toy.Toy")
    lock.lock()
    pipe.send(os.getpid())
    pipe.recv()
