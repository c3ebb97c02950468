"""Faults for tests: damaged files, kills, and hooks before calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def flip(path: Path, bit: int | None = None) -> None:
    """Flips a bit of a file, by default the one in its middle."""
    content = bytearray(path.read_bytes())
    index = 4 * len(content) if bit is None else bit
    content[index // 8] ^= 1 << index % 8
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


class KilledError(BaseException):
    """A kill: no handler of errors catches it, and no clean-up follows."""


def before_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, hook: Callable[[], None]
) -> None:
    """Patches `owner.name` to call `hook` first."""
    call = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        hook()
        return call(*args, **kwargs)

    monkeypatch.setattr(owner, name, patched)
