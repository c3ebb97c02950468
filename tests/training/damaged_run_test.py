"""A run whose checkpoints are damaged goes on from the newest that is whole."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lingvo_pipe.training.checkpoint_files import read_through
from lingvo_pipe.training.metrics_log import read_metrics
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
KINDS = ("data-00000-of-00001", "index")
NUM_FLIPS = 150


def _file(logdir: Path, step: int, kind: str) -> Path:
    return logdir / "checkpoints" / f"ckpt-{step:08d}.{kind}"


def _flip(path: Path, bit: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    place = 4 * len(content) if bit is None else bit
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _remove(path: Path) -> None:
    path.unlink()


def _goes_on(logdir: Path) -> list[str]:
    said: list[str] = []
    run(make_task(), DATA, logdir, said.append)
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose steps are all saved."""
    logdir = tmp_path_factory.mktemp("runs") / "whole"
    run(make_task(), DATA, logdir)
    return logdir


@pytest.fixture
def logdir(tmp_path: Path, whole: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "damaged")


def _assert_ends_as(whole: Path, logdir: Path) -> None:
    assert saved_bytes(logdir, STEPS) == saved_bytes(whole, STEPS)
    assert read_metrics(logdir) == read_metrics(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [_flip, _truncate, _empty, _remove])
def test_the_one_before_is_gone_on_from(
    whole: Path, logdir: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    damage(_file(logdir, STEPS, kind))
    said = _goes_on(logdir)
    if (kind, damage) != ("index", _remove):  # Without it there is no checkpoint.
        prefix = str(_file(logdir, STEPS, kind).with_suffix(""))
        assert re.search(rf"{prefix}\b.*damaged: \S", said[0])
    assert resumed_steps(said) == [STEPS - 1]
    _assert_ends_as(whole, logdir)


def test_of_two_that_are_damaged_both_are_told(whole: Path, logdir: Path) -> None:
    _flip(_file(logdir, STEPS, KINDS[0]))
    _truncate(_file(logdir, STEPS - 1, KINDS[1]))
    said = _goes_on(logdir)
    for step, line in zip((3, 2), said[:2], strict=True):
        assert re.search(rf"-{step:08d}\b.*damaged", line)
    assert resumed_steps(said) == [STEPS - 2]
    _assert_ends_as(whole, logdir)


def test_a_run_with_none_that_is_whole_stays_as_it_is(logdir: Path) -> None:
    for step in range(1, STEPS + 1):
        _flip(_file(logdir, step, KINDS[step % 2]))
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"\b3\b.*step 3: .*step 2: .*step 1: \S"):
        _goes_on(logdir)
    del before[logdir / "lock"]
    assert before == {path: path.read_bytes() for path in before}


def test_what_the_system_refuses_is_not_damaged(logdir: Path) -> None:
    """Once such a checkpoint was taken for damaged, and deleted by the next save."""
    prefix = str(_file(logdir, STEPS, "index").with_suffix(""))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            read_through(prefix)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    read_through(prefix)


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_changes_what_is_read(logdir: Path, kind: str) -> None:
    """It is found by a checksum, or lies where nothing is kept."""
    path = _file(logdir, STEPS, kind)
    prefix = str(path.with_suffix(""))
    want, num_found = saved_bytes(logdir, STEPS), 0
    draw = random.Random(1)
    for _ in range(NUM_FLIPS):
        bit = draw.randrange(8 * path.stat().st_size)
        _flip(path, bit)
        try:
            read_through(prefix)
        except ValueError:
            num_found += 1
        else:
            assert saved_bytes(logdir, STEPS) == want, f"bit {bit}"
        _flip(path, bit)
    assert num_found > NUM_FLIPS / 2
