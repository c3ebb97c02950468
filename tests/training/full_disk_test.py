"""A run resumes from its last checkpoint after any write failed."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.error_text import error_text
from lingvo_pipe.training.checkpoint.checkpoint_files import read_newest
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.training.injected_faults import before_calls
from tests.training.toy_run import (
    STEPS,
    Input,
    batch,
    make_task,
    resumed_steps,
    run,
    saved_bytes,
)

NUM_MOMENTS = 12
DATA = Input(*map(batch, range(STEPS)))


class Disk:
    """A count of file operations, which fail after some number of them.

    Args:
        monkeypatch: patches the operations.
        number: number of the error.
        num_good: number of operations that do not fail.

    Attributes:
        num_written: number of operations so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, num_good: float):
        self.num_written = 0
        self._number, self._num_good = number, num_good
        operations: list[tuple[Any, str, Callable[[], None]]] = [
            (pathlib.Path, "mkdir", self._fail),
            (pathlib.Path, "replace", self._fail),
            (os, "fsync", self._fail),
            (tf.raw_ops, "SaveV2", self._fail_as_tf),
        ]
        for owner, name, fail in operations:
            before_calls(monkeypatch, owner, name, functools.partial(self._count, fail))

    def _count(self, fail: Callable[[], None]) -> None:
        self.num_written += 1
        if self.num_written > self._num_good:
            fail()

    def _fail(self) -> None:
        raise OSError(self._number, os.strerror(self._number))

    def _fail_as_tf(self) -> None:
        text = f"/run/ckpt.data-00000-of-00001.tempstate1; {os.strerror(self._number)}"
        raise tf.errors.ResourceExhaustedError(None, None, f"{text} [Op:SaveV2]")


def _moments(logdir: Path, number: int) -> Iterator[int]:
    """Runs, and yields moments of the run: the first, random ones, and the last."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch, errno.ENOSPC, float("inf"))
        run(make_task(2), DATA, logdir)
    between = range(1, disk.num_written - 1)
    yield from (0, *random.Random(1).sample(between, number), between.stop)


def _saved_step(logdir: Path) -> int | None:
    """Returns the step of the newest checkpoint, which must be intact."""
    newest = read_newest(logdir / "checkpoints", pytest.fail, "")
    return newest and newest.step


def last_line_on_full_disk(number: int, moment: int, logdir: Path) -> str:
    """Returns the error's line, or the last log line if only the report failed."""
    logged: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        Disk(monkeypatch, number, moment)
        try:
            run(make_task(2), DATA, logdir, logged.append)
        except (OSError, tf.errors.OpError, ValueError) as error:
            line, _, _ = error_text(error).partition("\n  File ")
            assert "\n" not in line
            return line
    return logged[-1]


@pytest.mark.exhaustive
def test_a_run_resumes_when_there_is_space_again(tmp_path: Path) -> None:
    numbers = itertools.cycle([errno.ENOSPC, errno.EROFS, errno.EDQUOT])
    whole = tmp_path / "whole"
    for moment, number in zip(_moments(whole, NUM_MOMENTS), numbers, strict=False):
        logdir = tmp_path / str(moment)
        pattern = last_line_on_full_disk(number, moment, logdir)
        assert f"'{os.strerror(number)}'" in pattern, (moment, pattern)
        left = _saved_step(logdir)
        logged: list[str] = []
        run(make_task(2), DATA, logdir, logged.append)
        assert resumed_steps(logged) == ([] if left is None else [left])
        assert saved_bytes(logdir, STEPS) == saved_bytes(whole, STEPS)
        assert read_metrics(logdir) == read_metrics(whole)
