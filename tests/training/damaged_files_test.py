"""Any damage to any file of a run is one line that names it, for every job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cases import exhaustive
from tests.training.injected_faults import empty, remove
from tests.training.toy_run import STEPS
from tests.training.whole_run import (
    JOBS,
    SKIPPED,
    decode,
    evaluate,
    export,
    problem_of,
    report,
    train_toy,
    write_whole_run,
)

OTHER_USER = 12345


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("runs") / "whole"
    write_whole_run(logdir)
    return logdir


_STEM = f"{STEPS:08d}"
_CHECKPOINT = [
    f"checkpoints/ckpt-{_STEM}.index",
    f"checkpoints/ckpt-{_STEM}.data-00000-of-00001",
]
# File -> the jobs that open it. Other jobs may only notice what is no file.
FILES: dict[str, list[Callable[[Path], None]]] = {
    "params.txt": JOBS,
    "vocabulary.txt": [train_toy, evaluate, decode, export],
    "metrics.jsonl": [train_toy, report],
    "best.json": [train_toy, evaluate, report],
    "skipped_batches.json": [train_toy, report],
    "lock": [train_toy],
    "report.html": [train_toy, report],
    "traceback.txt": [],
    ".params.txt.incomplete": [train_toy],
    **dict.fromkeys(_CHECKPOINT, JOBS),
    "checkpoints/checkpoint": [train_toy],
    "checkpoints/record.json": [train_toy],
    "checkpoints": JOBS,
    "profile/step-3.txt": [report],
    "profile/step-3.png": [report],
    "evaler": [evaluate, report],
    "evaler/metrics.jsonl": [evaluate, report],
    "evaler/lock": [evaluate],
    "decoder/metrics.jsonl": [decode, report],
    f"decoder/test-{_STEM}.json": [decode, report],
    f"decoder/test-{_STEM}.png": [decode, report],
    f"decoder/test-{_STEM}.txt": [decode],
    "export": [export],
    f"export/{STEPS}": [export],
}


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _holding(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        if path.is_dir():
            _clear(path)
        path.write_bytes(content)

    return damage


def a_directory(path: Path) -> None:
    if not path.is_dir():
        path.unlink()
        path.mkdir()
        (path / "below").touch()


def a_pipe(path: Path) -> None:
    _clear(path)
    os.mkfifo(path)


def a_link(path: Path) -> None:
    target = path.with_name(f"{path.name}.target")
    path.rename(target)
    path.symlink_to(target)


def another_owners(path: Path) -> None:
    try:
        os.chown(path, OTHER_USER, OTHER_USER)
    except OSError as error:  # A user who is not root, or a sandbox.
        pytest.skip(str(error))


def with_a_line(path: Path, line: bytes) -> None:
    path.write_bytes(path.read_bytes() + line)


HUGE, DEEP = b"9" * 400, b"[" * 100_000
DAMAGES: dict[str, Callable[[Path], None]] = {
    "not UTF-8": _holding(b"\xff\xfe\x00"),
    "empty": lambda path: None if path.is_dir() else empty(path),
    "removed": lambda path: _clear(path) if path.is_dir() else remove(path),
    "huge": _holding(b'{"step": 1, "split": "test", "loss": %b}\n' % HUGE),
    "too huge": _holding(b'{"step": %b}\n' % (20 * HUGE)),
    "huge step": _holding(b'{"step": %b, "split": "a", "num_lines": 1}\n' % HUGE),
    "deep": _holding(DEEP + b"\n"),
    "deep line": lambda path: with_a_line(path, b"task.x : " + DEEP + b"\n"),
    "types": _holding(b'{"step": "x", "split": 3, "mean": [], "languages": 1}\n'),
    "a list": _holding(b'[1, null, {"after_step": -1, "num_batches": 1}]\n'),
    "a text": _holding(b'"text"\n'),
    "null": _holding(b"null\n"),
    "other params": lambda path: with_a_line(path, b"task.train.max_steps : 'x'\n"),
    "a header only": _holding(b"# model: toy.Toy\n"),
    "a directory": a_directory,
    "a pipe": a_pipe,
    "a link": a_link,
    "another owner's": another_owners,
}
NO_FILES = ("removed", "a directory", "a pipe", "a link", "another owner's")
OF_PARAMS = ("deep line", "other params", "a header only")
OTHERS = ("a link", "another owner's")  # Which no job accepts.

# What the trainer must not go on without, unless it is removed.
NEEDED = {"params.txt", "vocabulary.txt", "metrics.jsonl", "skipped_batches.json"}
NEEDED |= {"checkpoints", "checkpoints/record.json"}
LOSABLE = {"params.txt", "vocabulary.txt", "checkpoints", "checkpoints/record.json"}
_NUM_FAST = 6


def _cases() -> list[object]:
    every = [
        (job, file, damage)
        for file, readers in FILES.items()
        for damage in DAMAGES
        if damage not in OF_PARAMS or file == "params.txt"
        for job in (JOBS if damage in NO_FILES else readers)
    ]
    spread = every[:: len(every) // _NUM_FAST]
    fast = {case for case in spread if case[0] in FILES[case[1]]}
    # A pipe in place of a checkpoint's file made the trainer wait for ever.
    fast |= {(train_toy, file, "a pipe") for file in _CHECKPOINT}
    return [case if case in fast else exhaustive(*case) for case in every]


@pytest.mark.parametrize(("job", "file", "damage"), _cases())
def test_each_damage_is_a_line_that_names_the_file(
    tmp_path: Path, whole: Path, job: Callable[[Path], None], file: str, damage: str
) -> None:
    logdir = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    best = (logdir / "best.json").read_text()
    before = (logdir / file).read_bytes() if (logdir / file).is_file() else None
    DAMAGES[damage](logdir / file)
    path = logdir / file
    is_same = path.is_file() and path.read_bytes() == before
    is_foreign = damage in OTHERS
    line = problem_of(job, logdir)
    if line and damage != "removed" and damage not in OF_PARAMS:
        named = str(path).partition(".index")[0].partition(".data-")[0]
        assert named in line, (line, named)
    if is_foreign:
        assert "--allow_foreign_logdir" in line
    elif job is train_toy and file in NEEDED and not (is_same or path.is_dir()):
        may_pass = damage == "other params" or damage == "removed" and file in LOSABLE
        assert line or may_pass, "not noticed"
    if job is train_toy and not line and file == "best.json":
        assert path.read_text() == best


def _impossible(after_step: object, num_batches: object) -> str:
    return f'[{{"after_step": {after_step}, "num_batches": {num_batches}}}]'


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        exhaustive("[]\n"),
        exhaustive(_impossible(1, 2)),
        _impossible(2, 1),
        exhaustive(_impossible(0.5, 1)),
        exhaustive(_impossible("true", 1)),
        exhaustive(_impossible(1, 0)),
        exhaustive(f"{SKIPPED[:-2]}, {_impossible(0, 1)[1:]}"),
    ],
)
def test_skipped_batches_that_were_altered_are_noticed(
    tmp_path: Path, whole: Path, content: str
) -> None:
    logdir = shutil.copytree(whole, tmp_path / "run")
    (logdir / "skipped_batches.json").write_text(content)
    assert str(logdir / "skipped_batches.json") in problem_of(train_toy, logdir)


def test_altered_metrics_are_noticed_unless_the_user_accepts_them(
    tmp_path: Path, whole: Path
) -> None:
    logdir = shutil.copytree(whole, tmp_path / "run")
    path, record = logdir / "metrics.jsonl", logdir / "checkpoints" / "record.json"
    path.write_text(path.read_text().replace('"loss"', '"lost"', 1))
    line = problem_of(train_toy, logdir)
    assert f"{path}: " in line
    assert str(record) in line
    record.unlink()
    assert problem_of(train_toy, logdir) == ""
