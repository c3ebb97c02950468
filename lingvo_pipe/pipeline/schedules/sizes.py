"""The one condition that all schedules put on their sizes."""

from __future__ import annotations

from lingvo_pipe.pipeline.splitting.partition import is_count


def check_sizes(**sizes: int) -> None:
    """Raises ValueError naming every size that is no integer of at least 1."""
    faults = [
        f"{name} must be an integer of at least 1; got {value!r}"
        for name, value in sizes.items()
        if not is_count(value)
    ]
    if faults:
        raise ValueError("; ".join(faults) + ".")
