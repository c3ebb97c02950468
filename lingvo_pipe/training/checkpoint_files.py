"""The files of checkpoints, and reading the newest that is not damaged.

A checkpoint of step 1200 is `ckpt-00001200.index` with its `ckpt-00001200.data-*`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

# What TensorFlow raises on files that are damaged, cut short or gone.
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError, OSError)
# What the system says where the files may be as good as they were.
_REFUSED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)


class ReadCheckpoint(NamedTuple):
    """A checkpoint whose every tensor was read once, which compares the checksums.

    Attributes:
        step: its step.
        prefix: its path without `.index`.
        reader: reads it.
        damaged: steps of later checkpoints that can't be read.
    """

    step: int
    prefix: str
    reader: tf.train.CheckpointReader
    damaged: frozenset[int]


def stem_of(step: int) -> str:
    """The name of a step's files without their endings."""
    return f"ckpt-{step:08d}"


def steps_in(directory: Path) -> list[int]:
    """The steps of all checkpoints in a directory, ascending, damaged ones included."""
    names = (path.name for path in directory.glob("ckpt-*.index"))
    matches = (re.fullmatch(r"ckpt-(\d{8,})\.index", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def read_newest(
    directory: Path, log: Callable[[str], None], remedy: str
) -> ReadCheckpoint | None:
    """Reads the newest checkpoint in a directory that can be read.

    Args:
        directory: where the checkpoints lie.
        log: takes a line about each checkpoint that can't be read.
        remedy: what to do if none can; ends the error.

    Returns:
        The checkpoint, or None if there is none.

    Raises:
        ValueError: if there are checkpoints but none can be read.
    """
    reasons: dict[int, str] = {}
    # Listed anew each time: a trainer may be saving while another process reads.
    while steps := [s for s in steps_in(directory) if s not in reasons]:
        prefix = str(directory / stem_of(steps[-1]))
        try:
            reader = read_through(prefix)
        except ValueError as error:
            reasons[steps[-1]] = str(error)
            log(f"checkpoint {prefix} is damaged: {error}")
            continue
        return ReadCheckpoint(steps[-1], prefix, reader, frozenset(reasons))
    if reasons:
        raise ValueError(
            f"a checkpoint in {directory} must be readable; got "
            f"{len(reasons)}, all damaged: "
            + "; ".join(f"step {step}: {why}" for step, why in reasons.items())
            + f". {remedy}"
        )
    return None


def read_through(prefix: str) -> tf.train.CheckpointReader:
    """Reads every tensor of a checkpoint once, and returns its reader.

    Raises:
        ValueError: if it is damaged.
        OSError: if the system does not let it be read, and it may not be damaged.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except _UNREADABLE as error:
        for number in _REFUSED:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), prefix) from error
        raise ValueError(" ".join(str(error).split())) from error
    return reader
