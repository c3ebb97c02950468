"""The files of checkpoints: their names and sizes, and the newest readable one.

A checkpoint of step 1200 has the prefix `ckpt-00001200`. Its files are
`ckpt-00001200.index` and `ckpt-00001200.data-*`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError, UserValueError, Words
from lingvo_pipe.core.regular_file import check_no_pattern, naming, read_text

# Raised by TensorFlow for files that are damaged, cut short or gone.
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError, OSError)
# Errors of a file system on another host, or of a cable, which may pass.
PASSING = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT)
# Errors of the system after which the files may be intact.
_REFUSED = (
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM),
    *PASSING,
)


def stem_of(step: int) -> str:
    """Returns the name of a step's checkpoint, such as `ckpt-00001200`."""
    return f"ckpt-{step:08d}"


def steps_in(directory: Path) -> list[int]:
    """Returns the steps of a directory's checkpoints, ascending, even damaged ones."""
    with naming(directory):
        names = os.listdir(directory) if directory.is_dir() else []
    matches = (re.fullmatch(r"ckpt-(\d{8,})\.index", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _steps_of_state(directory: Path) -> list[int]:
    text = None
    with contextlib.suppress(OSError, ValueError):  # Checkpoints do not need the file.
        text = read_text(directory / "checkpoint")
    return sorted(map(int, re.findall(r'paths: "ckpt-(\d{8,15})"', text or "")))


def is_checkpoint(prefix: Path) -> bool:
    """Returns whether there is a checkpoint at this prefix, even a damaged one."""
    return Path(f"{prefix}.index").is_file()


def prefixes_at(path: Path, param: str, hint: str = "") -> list[Path]:
    """Returns the prefixes of the checkpoints at `path`, in the order of steps.

    `path` is a run's directory, its folder of checkpoints, or one checkpoint.

    Raises:
        ValueError: if there is no checkpoint. The error names `param`.
    """
    if is_checkpoint(path):
        return [path]
    for folder in (path / "checkpoints", path):
        if steps := steps_in(folder):
            return [folder / stem_of(step) for step in steps]
    problem = "holds no checkpoints" if path.is_dir() else "does not exist"
    raise UserValueError(
        path=param,
        expected="a checkpoint, such as RUN/checkpoints/ckpt-00000600, or the "
        "directory of a run",
        got=Words(f"{path}, which {problem}"),
        hint=hint,
    )


class ReadCheckpoint(NamedTuple):
    """A checkpoint whose tensors were all read, with correct checksums."""

    step: int
    prefix: str
    reader: tf.train.CheckpointReader
    damaged: frozenset[int]  # Steps of later checkpoints that cannot be read.


def read_newest(
    directory: Path, log: Callable[[str], None], hint: str
) -> ReadCheckpoint | None:
    """Returns a directory's newest undamaged checkpoint, or None if none was saved.

    `log` gets a line about each damaged checkpoint. The error ends with `hint`.

    Raises:
        ValueError: if all checkpoints are damaged, or gone although some were saved.
    """
    reasons: dict[int, str] = {}
    # Read first, since a trainer may save before the directory is listed.
    named = _steps_of_state(directory)
    newest = max(steps_in(directory), default=-1)
    lost = [step for step in named if step > newest]
    for path in (directory / stem_of(step) for step in lost):
        # If all files are gone, a user may have removed them to resume earlier.
        if any(_data_files(path)):
            log(f"Checkpoint {path} is damaged: its index is missing.")
    # Listed again each time: a trainer may save while another process reads.
    while steps := [s for s in steps_in(directory) if s not in reasons]:
        prefix = str(directory / stem_of(steps[-1]))
        try:
            reader = read_through(prefix)
        except UserDamageError as error:
            reasons[steps[-1]] = error.got
            log(f"Checkpoint {prefix} is damaged: {error.got}")
            continue
        return ReadCheckpoint(steps[-1], prefix, reader, frozenset(reasons))
    if reasons:
        damaged = "; ".join(f"step {step}: {why}" for step, why in reasons.items())
        expected, got = "a readable checkpoint", f"only damaged ones: {damaged}"
    elif lost:
        expected, got = f"the checkpoint {stem_of(lost[-1])}", "none"
    else:
        return None
    raise UserDamageError(
        path=str(directory), expected=expected, got=Words(got), hint=hint
    )


def read_through(prefix: str) -> tf.train.CheckpointReader:
    """Reads every tensor of a checkpoint once, and returns the reader.

    Raises:
        ValueError: if the checkpoint is damaged. The error's `got` is the reason.
        OSError: if the system refuses to read the files.
    """
    check_no_pattern(prefix, prefix)
    try:
        _check_regular(Path(prefix))
        reader = tf.train.load_checkpoint(prefix)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
        name = re.fullmatch(r"ckpt-(\d{8,})", Path(prefix).name)
        if name and reader.has_tensor("global_step"):
            step = reader.get_tensor("global_step")
            if step != int(name[1]):
                raise ValueError(
                    f"its name says step {int(name[1])}, and it holds {step}"
                )
    except _UNREADABLE as error:
        for number in _REFUSED:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), prefix) from error
        reason = Words(" ".join(str(error).split()))
        raise UserDamageError(
            path=prefix, expected="an undamaged checkpoint", got=reason
        ) from error
    return reader


def _data_files(prefix: Path) -> Iterator[Path]:
    return prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")


def _check_regular(prefix: Path) -> None:
    # TensorFlow would wait for a pipe's other end.
    for path in (Path(f"{prefix}.index"), *_data_files(prefix)):
        if path.exists() and not path.is_file():
            raise OSError(errno.ENXIO, "not a regular file", str(path))


class CheckpointStats(NamedTuple):
    """Size and time of a checkpoint, from the file system."""

    num_bytes: int
    saved: float  # Seconds since the epoch.


def checkpoint_stats(prefix: Path) -> CheckpointStats | None:
    """Returns a checkpoint's size and time, or None if one of its files is gone."""
    # The index is deleted first: without it the data files are not a checkpoint.
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        files = [index.stat()]
        files += [path.stat() for path in _data_files(prefix)]
    except FileNotFoundError:
        return None
    return CheckpointStats(
        sum(file.st_size for file in files), max(file.st_mtime for file in files)
    )
