"""A file that the user names is written whole, and checked before the work."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.programs import check_writable, program, write_output
from tests.support.errors import fails


def test_a_pipe_gets_the_text_and_stays(tmp_path: Path) -> None:
    """Once a file took its place, as of /dev/null, and its reader waited forever."""
    path, texts = tmp_path / "pipe", list[str]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: texts.append(path.read_text()))
    reader.start()
    check_writable(path, "--output")
    write_output(path, "ü\n")
    reader.join()
    assert texts == ["ü\n"]
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    file.write_text("old")
    for path in (file, link):
        check_writable(path, "--output")
        write_output(path, path.name)
        assert file.read_text() == path.name
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["", "absent/file", "file/below"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with fails(path="--output") as info:
        check_writable(tmp_path / name, "--output")
    assert str(tmp_path / name) in info.value.got


def test_a_disk_that_is_for_reading_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once this was noticed after hours, when the output was written."""

    def fail(**_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with fails(path="--output"):
        check_writable(tmp_path / "new", "--output")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError("a"), OSError(errno.ENOSPC, "b")])
def test_an_expected_error_is_one_line(error: Exception) -> None:
    with pytest.raises(SystemExit, match="^error: .*$"), program(["a"], OSError):
        raise error


def test_another_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), program(["a"], OSError):
        _ = 1 / 0
