"""A check that a file can be written, before there is anything to write."""

from __future__ import annotations

import tempfile
from pathlib import Path


def check_writable(path: Path, flag: str) -> None:
    """Checks that a file can be written.

    Args:
        path: path of the file.
        flag: flag that names the file.

    Raises:
        ValueError: if it cannot be written.
    """
    problem = "that is a directory" if path.is_dir() else None
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = error.strerror
    if problem:
        raise ValueError(
            f"{flag}: expected the path of a file in a writable folder, got {path} "
            f"({problem}). Choose another."
        )
