"""How large a checkpoint is and when it was saved, while a trainer may delete it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class CheckpointStats(NamedTuple):
    """What the file system says about a checkpoint.

    Attributes:
        num_bytes: of all its files.
        saved: when, in seconds since the epoch.
    """

    num_bytes: int
    saved: float


def checkpoint_stats(prefix: Path) -> CheckpointStats | None:
    """Looks at a checkpoint's files.

    Args:
        prefix: its path without `.index`.

    Returns:
        What they are, or None if the checkpoint is gone, wholly or in part.
    """
    try:
        # The index is the first to be deleted: without it the rest is no checkpoint.
        index = prefix.with_name(f"{prefix.name}.index").stat()
        data = [path.stat() for path in prefix.parent.glob(f"{prefix.name}.data-*")]
    except FileNotFoundError:
        return None
    files = [index, *data]
    return CheckpointStats(
        sum(file.st_size for file in files), max(file.st_mtime for file in files)
    )
