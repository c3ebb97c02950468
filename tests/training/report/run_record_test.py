"""A run's directory can be read while a trainer writes to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lingvo_pipe.training.report.run_record import checkpoint_sizes
from lingvo_pipe.training.run.run_directory import RunDirectory


def test_checkpoints_that_are_deleted_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path, "toy.Toy")
    directory.checkpoints_path.mkdir()
    for step in (3, 6):
        for ending in ("index", "data-00000-of-00001"):
            path = directory.checkpoints_path / f"ckpt-{step:08d}.{ending}"
            path.write_bytes(b"x" * step)
    assert checkpoint_sizes(directory) == {3: 6, 6: 12}
    stat = Path.stat

    def delete_first(path: Path) -> os.stat_result:
        if path.name.startswith("ckpt-00000003"):
            path.unlink()
        return stat(path)

    monkeypatch.setattr(Path, "stat", delete_first)
    assert checkpoint_sizes(directory) == {6: 12}
