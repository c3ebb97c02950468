"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def scratch_path(path: Path) -> Path:
    """Returns the file in which `write_atomically` collects the new content."""
    return path.with_name(f".{path.name}.incomplete")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file at `path` by `content`, text in UTF-8.

    A reader sees the old file or the new one, even after this process is killed or the
    machine goes down during the call.
    """
    scratch = scratch_path(path)
    with naming(path):
        with scratch.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until the file or directory at `path` is on disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file at `path` in an OSError that names none, as failed writes do."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise
