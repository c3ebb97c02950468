"""A disk that takes no more is told apart from other errors, with what to do."""

from __future__ import annotations

import errno
import os
import re

import pytest
import tensorflow as tf

from lingvo_pipe.disk_fault import disk_fault

# Its number -> a word of what is said to be done.
REMEDIES = {
    errno.ENOSPC: "room",
    errno.EDQUOT: "room",
    errno.EFBIG: "ulimit",
    errno.EROFS: "Mount",
}


def _pythons(number: int, *file: str) -> Exception:
    return OSError(number, os.strerror(number), *file)


def _tensorflows(number: int) -> Exception:
    text = f"{{{{function_node f}}}} /run/ckpt.index; {os.strerror(number)} [Op:SaveV2]"
    return tf.errors.ResourceExhaustedError(None, None, text)


@pytest.mark.parametrize("number", REMEDIES)
def test_all_is_told(number: int) -> None:
    for error in (_pythons(number, "/run/ckpt.index"), _tensorflows(number)):
        line = disk_fault(error)
        assert line is not None
        told = rf"'{os.strerror(number)}'.* /run/ckpt\.index\b.*\b{REMEDIES[number]}\b"
        assert re.search(told, line)
        assert "\n" not in line


def test_a_file_that_is_not_known_is_left_out() -> None:
    line = disk_fault(_pythons(errno.ENOSPC))
    assert line is not None
    assert re.search(rf"'{os.strerror(errno.ENOSPC)}'[^/]*\broom\b[^/]*$", line)


@pytest.mark.parametrize(
    "error",
    [
        _pythons(errno.ENOENT, "/run"),
        _pythons(errno.EIO),
        ValueError("logdir: /run; No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
    ],
)
def test_other_errors_are_none(error: Exception) -> None:
    assert disk_fault(error) is None
