"""How much of a machine's memory programs can still have, within what limits them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_KIB = 1024


class _Group(NamedTuple):
    """Names of a control group's files, and of what it can give back at any time."""

    folder: str
    limit: str
    used: str
    given_back: str


_GROUPS = (
    _Group("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    _Group(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes: those that the machine has, and those that a container may still take.

    Files that are kept in memory but can be read again count as free.

    Args:
        root: where `proc` and `sys` are.
    """
    meminfo = _numbers(root / "proc/meminfo")
    return min([meminfo["MemAvailable"] * _KIB, *_left_of_groups(root)])


def _left_of_groups(root: Path) -> Iterator[int]:
    for group in _GROUPS:
        folder = root / group.folder
        limit = _read(folder / group.limit)
        if limit in ("", "max"):
            continue
        used = int(_read(folder / group.used) or 0)
        files = _numbers(folder / "memory.stat").get(group.given_back, 0)
        yield max(int(limit) - max(used - files, 0), 0)


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file with lines such as `MemTotal: 16 kB`."""
    rows = (line.split() for line in _read(path).splitlines())
    return {name.rstrip(":"): int(number) for name, number, *_ in rows}


def _read(path: Path) -> str:
    """The text of a file; empty if there is none."""
    return path.read_text().strip() if path.is_file() else ""
