"""A run's directory can be read while a trainer writes to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.report.run_record import checkpoint_sizes, last_images
from lingvo_pipe.training.run.metrics_log import _IMAGE, MetricsLog
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


@pytest.mark.parametrize(
    "value", [["1", "2"], [1, 2, 3], "1"], ids=["two", "numbers", "one"]
)
def test_a_forged_image_is_named(tmp_path: Path, value: Any) -> None:
    """It ended the report with a traceback, or was drawn as three zeros."""
    with tf.summary.create_file_writer(str(tmp_path)).as_default(step=1):
        tf.summary.write("drawn", tf.constant(value), metadata=_IMAGE)
    with pytest.raises(UserDamageError) as error:
        last_images(tmp_path)
    assert error.value.path.startswith(str(tmp_path / "events.out"))


def test_the_last_image_is_of_the_largest_step_that_still_counts(
    tmp_path: Path,
) -> None:
    """Once the names of files decided, and a clock that was set back."""
    png = tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()
    for number, step in enumerate((5, 1, 9)):
        with MetricsLog(tmp_path / str(number)) as log:
            log.write_images(step, "test", {"picture": png})
        (path,) = (tmp_path / str(number) / "test").iterdir()
        path.rename(tmp_path / f"events.out.tfevents.{number}")
    assert last_images(tmp_path)["picture"][0] == 9
    assert last_images(tmp_path, last_step=6)["picture"][0] == 5


def test_an_event_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"no event")
    with pytest.raises(UserDamageError) as error:
        last_images(tmp_path)
    assert error.value.path == str(path)
