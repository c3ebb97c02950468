"""Checkpoints are listed, verified and compared, with exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.training.checkpoint import checkpoint_files
from lingvo_pipe.training.checkpoint.checkpoint_tool import main
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from tests.training.injected_faults import flip


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A run with two checkpoints."""
    variables = {
        "w": tf.Variable([[1.0, 2.0], [3.0, 4.0]]),
        "half": tf.Variable(tf.constant([1.0, 2.0], tf.bfloat16)),
        "global_step": tf.Variable(1, dtype=tf.int64),
    }
    (tmp_path / "run").mkdir()
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints", variables)
    checkpointer.save(1)
    variables["w"].assign([[1.0, 2.0], [3.5, 8.0]])
    variables["half"].assign(tf.constant([1.0, 2.5], tf.bfloat16))
    variables["global_step"].assign(2)
    checkpointer.save(2)
    return tmp_path / "run"


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as exit_info:
        main([str(word) for word in words])
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code, capsys.readouterr().out.splitlines()


def _assert_lines(lines: list[str], *patterns: str) -> None:
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.match(pattern, line)


def _damage(logdir: Path) -> None:
    flip(logdir / "checkpoints" / "ckpt-00000002.data-00000-of-00001", bit=24)


def test_list_prints_each_checkpoint(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (_, *lines) = _run(capsys, "list", logdir)
    assert code == 0
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    for n, line in enumerate(lines, start=1):
        assert re.fullmatch(rf"ckpt-0000000{n} +{when} +0\.000 +3 +7", line)
    _damage(logdir)
    assert "damaged" in _run(capsys, "list", logdir)[1][2]


def test_verify_finds_damage(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = ["ckpt-00000001: good", "ckpt-00000002: good"]
    assert _run(capsys, "verify", logdir) == (0, good)
    _damage(logdir)
    code, lines = _run(capsys, "verify", logdir / "checkpoints")
    assert (code, lines[0]) == (1, good[0])
    assert re.match("ckpt-00000002: damaged: .*[Cc]hecksum", lines[1])
    one = logdir / "checkpoints" / "ckpt-00000001"
    assert _run(capsys, "verify", one) == (0, good[:1])


def test_compare_prints_differences(
    logdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = logdir / "checkpoints"
    code, (same,) = _run(capsys, "compare", logdir, folder / "ckpt-00000002")
    assert code == 0
    assert re.search(r"/ckpt-00000002: 0 variables\b", same)
    code, lines = _run(capsys, "compare", folder / "ckpt-00000001", logdir)
    assert code == 1
    _assert_lines(
        lines[:-1],
        r"global_step: 1 of 1 \D* 1\b\D* 1$",
        r"half: 1 of 2 \D* 0\.5\b\D* 2$",
        r"w: 2 of 4 \D* 4\b\D* 4$",
    )
    other = {"w": tf.Variable([1.0]), "v": tf.Variable(1.0)}
    Checkpointer(tmp_path / "other", other).save(7)
    code, lines = _run(capsys, "compare", logdir, tmp_path / "other")
    assert code == 1
    _assert_lines(
        lines[:-1],
        r"global_step: int64 \[\], .*\bfirst$",
        r"half: bfloat16 \[2\], .*\bfirst$",
        r"v: float32 \[\], .*\bsecond$",
        r"w: float32 \[2, 2\] .*\bfirst\b.* float32 \[1\] .*\bsecond$",
    )


def _problem(
    capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[str | int | None, str]:
    """Returns the exit code of a command that fails, and its line."""
    with pytest.raises(SystemExit) as exit_info:
        main([str(word) for word in words])
    return exit_info.value.code, capsys.readouterr().err


def test_a_path_without_checkpoints_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, what in ((tmp_path, "checkpoints"), (tmp_path / "x", "exist")):
        code, line = _problem(capsys, "list", path)
        assert code == 2
        assert re.match(rf"error: PATH: .*{path}\b.*\b{what}\b", line)


def test_compare_names_the_damaged_checkpoint(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says so too. Once it was the same as for a difference."""
    _damage(logdir)
    first = logdir / "checkpoints" / "ckpt-00000001"
    code, line = _problem(capsys, "compare", first, logdir)
    assert code == 3
    assert re.match(r"error: .*/ckpt-00000002: .*hecksum", line)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_checkpoints_deleted_meanwhile_are_left_out(
    logdir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """They are deleted after the folder is listed, before one is read."""
    read = checkpoint_files.read_through

    def delete_before(prefix: str) -> tf.train.CheckpointReader:
        for path in (logdir / "checkpoints").glob("ckpt-00000001.*"):
            path.unlink()
        return read(prefix)

    monkeypatch.setattr(checkpoint_files, "read_through", delete_before)
    code, lines = _run(capsys, command, logdir)
    assert code == 0
    assert [line[:13] for line in lines if "ckpt" in line] == ["ckpt-00000002"]
