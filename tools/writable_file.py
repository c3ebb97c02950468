"""Whether a file can be written, before there is anything to write."""

from __future__ import annotations

import tempfile
from pathlib import Path


def check_writable(path: Path, flag: str) -> None:
    """Checks that a file can be written.

    Args:
        path: of the file.
        flag: by which a user gives it.

    Raises:
        ValueError: if it can't.
    """
    problem = "that is a directory" if path.is_dir() else None
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = error.strerror
    if problem:
        raise ValueError(
            f"{flag} must be the path of a file in a folder that can be written; got "
            f"{path} ({problem}). Choose another."
        )
