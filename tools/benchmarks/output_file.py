"""The rows as a file of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.training.atomic_file import write_atomically
from tools.benchmarks.rows import Row


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes `{"rows": [...]}`, whole or not at all."""
    text = json.dumps({"rows": [row.to_dict() for row in rows]}, indent=2)
    write_atomically(path, text + "\n")
