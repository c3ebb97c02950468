"""Regular files and folders: opened without following links, read, and removed."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lingvo_pipe.core.activity import activity
from lingvo_pipe.core.errors import UserDamageError, UserError, UserValueError, Words

# Errors if something else is in a file's place, or if access is denied.
_IN_THE_WAY = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EPERM,
)
# Errors of a file system that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Errors in reading a value that has the wrong form.
MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
_PUT_BACK = "Put back a copy, or use another --logdir."


def damaged(
    path: Path, expected: str, got: object, hint: str = _PUT_BACK
) -> UserDamageError:
    """Returns the error for a file whose content is not as expected.

    `got` is the content, or an error about the content. The result shows the error's
    message or, if `got` is a UserError, the value `got.got`.
    """
    if isinstance(got, Exception):
        got = Words(got.got if isinstance(got, UserError) else got)
    text = got if isinstance(got, Words) else str(got)
    shown = type(text)(text[:60])
    return UserDamageError(path=str(path), expected=expected, got=shown, hint=hint)


def open_file(path: Path, mode: str) -> IO[Any]:
    """Opens a regular file. Without `b` in the mode, text is in UTF-8.

    Raises:
        ValueError: if the path is a link, a pipe or a directory.
    """
    with naming(path):
        encoding = None if "b" in mode else "utf-8"
        return open(path, mode, encoding=encoding, opener=_open_no_link)


def read_text(path: Path, hint: str = _PUT_BACK) -> str | None:
    """Returns a file's text, or None if it is missing.

    Raises:
        ValueError: if the text is not UTF-8. The error ends in `hint`.
    """
    try:
        with open_file(path, "r") as file:
            return str(file.read())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise damaged(path, "text in UTF-8", error, hint) from error


def read_json(path: Path, hint: str = _PUT_BACK) -> Any:
    """Returns the value in a JSON file, or None if it is missing.

    Raises:
        ValueError: if the text is not UTF-8 or not JSON, or is null.
    """
    text = read_text(path, hint)
    if text is None:
        return None
    try:
        value = json.loads(text)
        if value is None:
            raise ValueError("null")
        return value
    except (ValueError, RecursionError) as error:
        raise damaged(path, "JSON", error, hint) from error


def lock_file(file: IO[Any], path: Path, waits: bool = True) -> None:
    """Locks an open file, which is at `path`, until it is closed.

    Raises:
        BlockingIOError: if another process has locked it, unless this one waits.
        ValueError: if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserValueError(
            path=str(path),
            expected="a file system with locks (flock)",
            got=Words(error.strerror),
            hint="Use another folder, or mount it with locks.",
        ) from error


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Locks a folder, once no other process has locked it.

    The system releases the lock if the process dies. A file system may have no locks.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        waiting = activity(f"waiting for another process's work in {path}")
        with contextlib.suppress(OSError), waiting:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_present(file: IO[Any], path: Path) -> None:
    """Raises ValueError unless an open file is still the one at `path`."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
            return
    raise UserValueError(
        path=str(path.parent),
        expected=f"this run's directory, whose {path.name} was removed or replaced",
        hint="Put it back to resume, or remove the directory to start anew.",
    )


def remove(path: Path) -> None:
    """Removes a file, or a folder with everything in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_local(name: str, path: str) -> None:
    """Raises ValueError if `path`, of the param `name`, is a URL like gs://runs/a."""
    if re.match(r"[A-Za-z][\w+.-]*:/", path):
        raise UserValueError(
            path=name,
            expected="a folder of this machine",
            got=path,
            hint="Mount the remote storage, or copy from and to it, since locks and "
            "atomic renames need a file system.",
        )


def check_no_pattern(name: str, path: str) -> None:
    """Raises ValueError if TensorFlow would read `path` as a pattern of several files.

    `name` is the param, or the path. TensorFlow writes checkpoints at such paths, but
    cannot read them.
    """
    if re.search(r"[*?\[\\]", path):
        raise UserValueError(
            path=name,
            expected="a path without *, ?, [ and \\, where TensorFlow would not find "
            "checkpoints",
            got=path,
            hint="Rename the folder, or choose another.",
        )


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds `path` to an OSError that names no file, such as one from a failed write.

    Raises:
        ValueError: if something else is in the file's place, or access is denied.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            raise UserValueError(
                path=str(path),
                expected="a file or folder of this user",
                got=error.strerror,
                hint="Remove what is in its place, or correct its permissions.",
            ) from error
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def _open_no_link(path: str, flags: int) -> int:
    # A pipe would otherwise wait for its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, "not a regular file")
