"""Whatever can't be written any more, a run goes on from its last checkpoint."""

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

from lingvo_pipe.error_text import error_text
from lingvo_pipe.training.checkpoint_files import read_newest
from lingvo_pipe.training.metrics_log import read_metrics
from tests.support.cases import exhaustive
from tests.training.stand_before import stand_before
from tests.training.toy_run import (
    STEPS,
    Input,
    batch,
    make_task,
    resumed_steps,
    run,
    saved_bytes,
)

DATA = Input(*map(batch, range(STEPS)))


class Disk:
    """Counts what is written, and from some moment on refuses it.

    Attributes:
        num_written: operations on files, so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, most: float):
        """Initialises it.

        Args:
            monkeypatch: has it stand between the run and its files.
            number: of the error from then on.
            most: how many operations go well.
        """
        self.num_written = 0
        self._number, self._most = number, most
        for name in ("mkdir", "replace"):
            self._refuse(monkeypatch, pathlib.Path, name, self._fail)
        self._refuse(monkeypatch, os, "fsync", self._fail)
        self._refuse(monkeypatch, tf.raw_ops, "SaveV2", self._fail_as_tf)

    def _refuse(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        fail: Callable[[], None],
    ) -> None:
        stand_before(monkeypatch, owner, name, functools.partial(self._count, fail))

    def _count(self, fail: Callable[[], None]) -> None:
        self.num_written += 1
        if self.num_written > self._most:
            fail()

    def _fail(self) -> None:
        raise OSError(self._number, os.strerror(self._number))

    def _fail_as_tf(self) -> None:
        text = f"/run/ckpt.data-00000-of-00001.tempstate1; {os.strerror(self._number)}"
        raise tf.errors.ResourceExhaustedError(None, None, f"{text} [Op:SaveV2]")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("runs") / "whole"
    run(make_task(), DATA, logdir)
    return logdir


def _moments(tmp_path: Path, number: int) -> Iterator[int]:
    """Yields moments of a run: the first, a number of others, and the last."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch, errno.ENOSPC, float("inf"))
        run(make_task(), DATA, tmp_path / "counted")
    between = range(1, disk.num_written - 1)
    yield from (0, *random.Random(1).sample(between, number), between.stop)


def _saved_step(logdir: Path) -> int | None:
    """The step of the newest checkpoint, which must be whole."""
    newest = read_newest(logdir / "checkpoints", pytest.fail, "")
    return newest and newest.step


def _told_on_full_disk(number: int, moment: int, logdir: Path) -> str:
    """The line of the error; or what was said, if nothing but a report was missed."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        Disk(monkeypatch, number, moment)
        try:
            run(make_task(), DATA, logdir, said.append)
        except (OSError, tf.errors.OpError, ValueError) as error:
            line, _, _ = error_text(error).partition("\n  File ")
            assert "\n" not in line
            return line
    return said[-1]


@pytest.mark.parametrize("num_moments", [2, exhaustive(12)])
def test_a_run_goes_on_when_there_is_room_again(
    tmp_path: Path, whole: Path, num_moments: int
) -> None:
    numbers = itertools.cycle([errno.ENOSPC, errno.EROFS, errno.EDQUOT])
    for moment, number in zip(_moments(tmp_path, num_moments), numbers, strict=False):
        logdir = tmp_path / str(moment)
        told = _told_on_full_disk(number, moment, logdir)
        assert f"'{os.strerror(number)}'" in told, (moment, told)
        left = _saved_step(logdir)
        said: list[str] = []
        run(make_task(), DATA, logdir, said.append)
        assert resumed_steps(said) == ([] if left is None else [left])
        assert saved_bytes(logdir, STEPS) == saved_bytes(whole, STEPS)
        assert read_metrics(logdir) == read_metrics(whole)
