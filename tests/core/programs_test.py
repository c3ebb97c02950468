"""A file that the user names is written whole, and checked before the work."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserDamageError
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


@pytest.mark.parametrize("target", ["file", "folder/new"])
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, target: str) -> None:
    """Once a full disk left a part of it, since it was written in place."""
    file, link, earlier = tmp_path / target, tmp_path / "link", tmp_path / "earlier"
    (tmp_path / "folder").mkdir()
    link.symlink_to(target)
    if target == "file":
        file.write_text("old")
        earlier.hardlink_to(file)
    for path in (link, file):
        check_writable(path, "--output")
        write_output(path, path.name)
        assert file.read_text() == path.name
    assert link.is_symlink()
    assert not earlier.exists() or earlier.read_text() == "old"


@pytest.mark.parametrize("is_device", [False, True])
def test_a_file_to_which_the_program_prints_is_refused(
    tmp_path: Path, is_device: bool
) -> None:
    """Once /dev/stdout lost the other lines that were printed there."""
    path = tmp_path / "printed"
    with path.open("w") as stream:
        output = Path(f"/dev/fd/{stream.fileno()}") if is_device else path
        with fails(path="--output"):
            check_writable(output, "--output")
    check_writable(path, "--output")


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


def test_a_module_that_a_users_module_lacks_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once only the absent module was named, and not the one that imports it."""
    (tmp_path / "my_builders.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as info, program(["a"], ImportError):
        importlib.import_module("my_builders")
    first, *lines = str(info.value).splitlines()
    assert "no_such_module" in first
    assert any(f"{tmp_path}/my_builders.py" in line for line in lines)


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("a"), 2), (UserDamageError("a"), 3)]
)
def test_an_error_has_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as info, program(["a"], code=2):
        raise error
    assert info.value.code == code
    assert capsys.readouterr().err == "error: a\n"


def test_another_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), program(["a"], OSError):
        _ = 1 / 0
