"""Files that are replaced as a whole or not at all."""

import os
from pathlib import Path

from lingvo_pipe.core.regular_file import naming, open_file


def scratch_path(path: Path) -> Path:
    """Returns the file in which `write_atomically` collects the new content."""
    return path.with_name(f".{path.name}.incomplete")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file or link at `path` by `content`. Text is written in UTF-8.

    A reader sees the old file or the new one, even if the machine goes down meanwhile.
    """
    scratch = scratch_path(path)
    with naming(scratch):
        scratch.unlink(missing_ok=True)
    with naming(path):
        with open_file(scratch, "xb") as file:
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
