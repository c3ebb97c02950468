"""The rows as a file of JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.training.atomic_file import write_atomically
from tools.benchmarks.rows import Row


def check_writable(path: Path) -> None:
    """Checks that `write_rows` will be able to write there.

    Raises:
        ValueError: if not.
    """
    problem = "that is a directory" if path.is_dir() else None
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = error.strerror
    if problem:
        raise ValueError(
            f"--output must be the path of a file in a folder that can be written; got "
            f"{path} ({problem}). Choose another."
        )


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes `{"rows": [...]}`, whole or not at all."""
    text = json.dumps({"rows": [row.to_dict() for row in rows]}, indent=2)
    write_atomically(path, text + "\n")
