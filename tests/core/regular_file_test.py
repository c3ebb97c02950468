"""Only regular files are opened, and never through a link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lingvo_pipe.core import regular_file
from lingvo_pipe.core.atomic_file import scratch_path, write_atomically
from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.core.regular_file import (
    check_local,
    check_present,
    lock_file,
    locked_folder,
    open_file,
    read_json,
    read_text,
    remove,
)
from tests.support.errors import fails


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("victim"))


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("new"))


@pytest.mark.parametrize("mode", ["r", "rb", "a", "ab+", "xb"])
@pytest.mark.parametrize("make", [_link, _dangling_link, Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused(
    tmp_path: Path, mode: str, make: Callable[[Path], None]
) -> None:
    (tmp_path / "victim").write_text("years of work")
    path = tmp_path / "file"
    make(path)
    before = sorted(tmp_path.iterdir())
    with fails(path=str(path)):
        open_file(path, mode)
    assert (tmp_path / "victim").read_text() == "years of work"
    assert sorted(tmp_path.iterdir()) == before


def test_files_are_opened_as_usual(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open_file(path, "xb") as file:
        file.write("ü\n".encode())
    with open_file(path, "a") as text:
        text.write("a")
    assert read_text(path) == "ü\na"
    assert read_text(tmp_path / "missing") is None
    assert read_json(tmp_path / "missing") is None
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "missing", "r")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{", b"null", b"[" * 100_000, b"9" * 5000]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with fails(UserDamageError, path=str(path), hint="Copy it."):
        read_json(path, "Copy it.")


@pytest.mark.parametrize("make", [_link, _dangling_link])
def test_a_write_follows_no_link(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Once the link at the incomplete file led to the victim."""
    (tmp_path / "victim").write_text("years of work")
    path = tmp_path / "file"
    make(path)
    make(scratch_path(path))
    write_atomically(path, "text")
    assert not path.is_symlink()
    assert path.read_text() == "text"
    assert (tmp_path / "victim").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["file", "victim"]


@pytest.mark.parametrize("name", ["file", ".file.incomplete"])
def test_a_directory_in_the_place_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with fails(path=str(tmp_path / name)):
        write_atomically(tmp_path / "file", "text")


def test_a_file_that_was_replaced_is_another(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    path.parent.mkdir()
    changes: list[Callable[[], object]] = [
        lambda: path.rename(tmp_path / "moved"),
        lambda: path.write_text(""),
        lambda: remove(path.parent),
    ]
    with open_file(path, "a") as file:
        check_present(file, path)
        for change in changes:
            change()
            with fails(path=str(path.parent)):
                check_present(file, path)


def test_a_link_is_removed_and_not_its_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    assert os.listdir(tmp_path) == ["folder"]
    remove(tmp_path / "folder")
    remove(tmp_path / "folder")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["gs://a/b", "gs:/a", "file:///tmp/a"])
def test_a_url_is_no_folder(url: str) -> None:
    with fails(path="--logdir", got=url):
        check_local("--logdir", url)


@pytest.mark.parametrize("path", ["/tmp/a", "~/a:b", "a:b", "", "./a:/b"])
def test_a_path_is_a_folder(path: str) -> None:
    check_local("--logdir", path)


def test_a_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open_file(path, "ab") as file, open_file(path, "ab") as other:
        lock_file(file, path)
        with pytest.raises(BlockingIOError):
            lock_file(other, path, waits=False)
        file.close()
        lock_file(other, path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Once there was a line without the file or advice, as on Lustre."""

    def refuse(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "lock"
    with open_file(path, "ab") as file, fails(path=str(path)):
        lock_file(file, path)


def test_a_folder_is_locked_for_a_while(tmp_path: Path) -> None:
    def is_locked() -> bool:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def lock() -> None:
        with locked_folder(tmp_path):
            pass

    with locked_folder(tmp_path):
        assert is_locked()
        waiting = threading.Thread(target=lock)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join()
    assert not is_locked()


def test_a_wait_for_a_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an exporter stood still without a line while another one wrote."""
    names: list[str] = []

    def show(name: str) -> contextlib.AbstractContextManager[None]:
        names.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(regular_file, "activity", show)
    with locked_folder(tmp_path):
        (name,) = names
    assert str(tmp_path) in name
