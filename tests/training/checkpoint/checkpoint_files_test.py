"""Stats of a checkpoint's files are read, also while they are deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.training.checkpoint.checkpoint_files import (
    checkpoint_stats,
    read_through,
)
from tests.support.errors import fails

STEM, NAMES = "ckpt-00000007", ("index", "data-00000-of-00002", "data-00001-of-00002")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for n, name in enumerate(NAMES):
        path = tmp_path / f"{STEM}.{name}"
        path.write_bytes(b"x" * 10**n)
        os.utime(path, (0, 100 + n))
    (tmp_path / "ckpt-000000070.index").write_bytes(b"of another")
    return tmp_path / STEM


def test_a_path_that_tensorflow_takes_for_a_pattern_is_named() -> None:
    with fails(path="/a[1]/ckpt-00000007", got="/a[1]/ckpt-00000007"):
        read_through("/a[1]/ckpt-00000007")


def test_stats_are_bytes_and_time(prefix: Path) -> None:
    assert checkpoint_stats(prefix) == (111, 102.0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_not_damaged(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Once the next save deleted a checkpoint after a time-out of NFS."""

    def fail(path: str) -> None:
        text = f"{path}.data-00000-of-00002; {os.strerror(number)}"
        raise tf.errors.UnknownError(None, None, text)

    monkeypatch.setattr(tf.train, "load_checkpoint", fail)
    with pytest.raises(OSError, match=STEM) as info:
        read_through(str(prefix))
    assert (info.value.errno, info.value.filename) == (number, str(prefix))


@pytest.mark.parametrize("gone", range(len(NAMES)))
def test_a_checkpoint_deleted_meanwhile_has_no_stats(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    stat = Path.stat

    def delete_first(path: Path) -> os.stat_result:
        if path.name == f"{STEM}.{NAMES[gone]}":
            path.unlink()
        return stat(path)

    monkeypatch.setattr(Path, "stat", delete_first)
    assert checkpoint_stats(prefix) is None
    monkeypatch.undo()
    assert (checkpoint_stats(prefix) is None) == (NAMES[gone] == "index")
