"""Atomic writing: the old text or the new, never a part."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import disk_problem


def test_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("first\n", "second, ü\n", ""):
        write_atomically(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_text_and_names_the_file(tmp_path: Path) -> None:
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_atomically(path, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))) as caught:
            write_atomically(path, "too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(disk_problem(caught.value)).startswith(f"Cannot write {path}: ")
    assert path.read_text() == "old"


def test_the_new_text_is_on_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before it has its name, and then the directory with the name."""
    path, sync, synced = tmp_path / "file", os.fsync, []

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(path, "text")
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
