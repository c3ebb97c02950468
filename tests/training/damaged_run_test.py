"""A run with damaged checkpoints resumes from the newest intact one."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.checkpoint.checkpoint_files import read_through
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.errors import fails
from tests.training.injected_faults import flip, truncate
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


def resume(logdir: Path) -> list[str]:
    logged: list[str] = []
    run(make_task(), DATA, logdir, logged.append)
    return logged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of each step."""
    logdir = tmp_path_factory.mktemp("runs") / "whole"
    run(make_task(), DATA, logdir)
    return logdir


@pytest.fixture
def logdir(tmp_path: Path, whole: Path) -> Path:
    """A copy of the run, to be damaged."""
    return shutil.copytree(whole, tmp_path / "damaged")


def assert_same_end(whole: Path, logdir: Path) -> None:
    assert saved_bytes(logdir, STEPS) == saved_bytes(whole, STEPS)
    assert read_metrics(logdir) == read_metrics(whole)


def test_a_run_without_the_last_index_resumes_from_the_checkpoint_before(
    whole: Path, logdir: Path
) -> None:
    index = _file(logdir, STEPS, "index")
    index.unlink()
    logged = resume(logdir)
    assert re.search(rf"{index.with_suffix('')}\b.*missing", logged[0])
    assert resumed_steps(logged) == [STEPS - 1]
    assert_same_end(whole, logdir)


def test_two_damaged_checkpoints_are_both_logged(whole: Path, logdir: Path) -> None:
    flip(_file(logdir, STEPS, KINDS[0]))
    truncate(_file(logdir, STEPS - 1, KINDS[1]))
    logged = resume(logdir)
    for step, line in zip((3, 2), logged[:2], strict=True):
        assert re.search(rf"-{step:08d}\b.*damaged", line)
    assert resumed_steps(logged) == [STEPS - 2]
    assert_same_end(whole, logdir)


def test_a_run_with_only_damaged_checkpoints_is_not_changed(logdir: Path) -> None:
    for step in range(1, STEPS + 1):
        flip(_file(logdir, step, KINDS[step % 2]))
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    with fails(UserDamageError, path=str(logdir / "checkpoints")) as info:
        resume(logdir)
    assert re.search(r"step 3: .*step 2: .*step 1: \S", info.value.got)
    del before[logdir / "lock"]
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("lost", [KINDS, KINDS[1:]])
def test_a_run_whose_checkpoints_are_missing_is_not_changed(
    logdir: Path, lost: tuple[str, ...]
) -> None:
    """It started again from the first step, and exit code 0."""
    for step in range(1, STEPS + 1):
        for kind in lost:
            _file(logdir, step, kind).unlink()
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    with fails(UserDamageError, expected=f"the checkpoint ckpt-{STEPS:08d}"):
        resume(logdir)
    del before[logdir / "lock"]
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.exhaustive
def test_a_run_without_its_checkpoint_folder_says_that_it_starts_anew(
    whole: Path, logdir: Path
) -> None:
    """It looks like one that was killed before its first save."""
    shutil.rmtree(logdir / "checkpoints")
    logged = resume(logdir)
    assert any("No checkpoint" in line and f"step {STEPS}" in line for line in logged)
    assert_same_end(whole, logdir)


def test_a_file_that_the_system_refuses_is_not_damaged(logdir: Path) -> None:
    """Once the next save deleted such a checkpoint as damaged."""
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
    """A checksum finds it, or no content is at the bit."""
    path = _file(logdir, STEPS, kind)
    prefix = str(path.with_suffix(""))
    expected, num_found = saved_bytes(logdir, STEPS), 0
    draw = random.Random(1)
    for _ in range(NUM_FLIPS):
        bit = draw.randrange(8 * path.stat().st_size)
        flip(path, bit)
        try:
            read_through(prefix)
        except ValueError:
            num_found += 1
        else:
            assert saved_bytes(logdir, STEPS) == expected, f"bit {bit}"
        flip(path, bit)
    assert num_found > NUM_FLIPS / 2


def test_a_checkpoint_holds_no_code(logdir: Path) -> None:
    """Numbers, and the input's position as a text."""
    reader = read_through(str(_file(logdir, STEPS, "index").with_suffix("")))
    dtypes = reader.get_variable_to_dtype_map()
    assert dtypes.pop("input_place") == tf.string
    assert all(dtype.is_floating or dtype.is_integer for dtype in dtypes.values())


def _change_last_evaluation(logdir: Path) -> None:
    path = logdir / "metrics.jsonl"
    *lines, last = path.read_text().splitlines()
    changed = json.loads(last) | {"accuracy": 0.75}
    path.write_text("\n".join([*lines, json.dumps(changed), ""]))


def test_the_last_evaluation_is_guarded(logdir: Path) -> None:
    """A run once added a second one, and followed the altered one's value."""
    _change_last_evaluation(logdir)
    with fails(UserDamageError, path=str(logdir / "metrics.jsonl")):
        resume(logdir)


def test_an_evaluation_that_differs_is_told_and_written_once(logdir: Path) -> None:
    """The logged one stays, also on another kind of device."""
    _change_last_evaluation(logdir)
    (logdir / "checkpoints" / "record.json").unlink()
    before = read_metrics(logdir)
    assert any("differs" in line for line in resume(logdir))
    assert read_metrics(logdir) == before


@pytest.mark.exhaustive
def test_a_report_without_a_loss_is_none(logdir: Path) -> None:
    """Removing the record, as the error says, once led to a KeyError."""
    path = logdir / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss"', '"lost"', 1))
    (logdir / "checkpoints" / "record.json").unlink()
    assert resume(logdir)
