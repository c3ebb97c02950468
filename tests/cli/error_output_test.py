"""A traceback is kept with the run that it ended, and with no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from absl.testing import flagsaver

from lingvo_pipe.cli.error_output import errors_as_lines, write_traceback
from lingvo_pipe.cli.flags import FLAGS
from lingvo_pipe.core.errors import (
    UserClusterError,
    UserConnectionError,
    UserValueError,
)
from lingvo_pipe.core.regular_file import damaged
from lingvo_pipe.training.run.run_directory import RunDirectory


def _error() -> Exception:
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["absent"]
    return caught.value


def test_a_run_keeps_the_last_one(tmp_path: Path) -> None:
    RunDirectory(tmp_path, "mine.Model").write_params("x : 1\n")
    (tmp_path / "traceback.txt").write_text("an older one")
    path = write_traceback(_error(), str(tmp_path), "mine.Model")
    assert path == tmp_path / "traceback.txt"
    text = path.read_text()
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("KeyError: 'absent'\n")
    RunDirectory(tmp_path, "mine.Model")  # Goes on.


@pytest.mark.parametrize("logdir", ["absent", "empty", "foreign", "others", "file"])
def test_what_is_no_run_of_the_model_stays_as_it_is(
    tmp_path: Path, logdir: str
) -> None:
    for name in ("empty", "foreign", "others"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years of work")
    (tmp_path / "others" / "params.txt").write_text("# model: mine.Other\n")
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert write_traceback(_error(), str(tmp_path / logdir), "mine.Model") is None
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("job", "mode"),
    [("trainer", "train"), ("evaler", "train"), ("trainer", "diff_params")],
)
def test_only_training_writes_it(tmp_path: Path, job: str, mode: str) -> None:
    """Once an evaler's error took the place of the trainer's."""
    RunDirectory(tmp_path, "mine.Model").write_params("x : 1\n")
    FLAGS.mark_as_parsed()
    flags = {"job": job, "mode": mode, "logdir": str(tmp_path), "model": "mine.Model"}
    with flagsaver.flagsaver(**flags), pytest.raises(SystemExit), errors_as_lines():
        raise _error()
    is_written = (tmp_path / "traceback.txt").exists()
    assert is_written == ((job, mode) == ("trainer", "train"))


def test_a_broken_pipe_of_something_else_is_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once it ended any program without a word."""
    FLAGS.mark_as_parsed()
    with pytest.raises(SystemExit), errors_as_lines():
        raise BrokenPipeError("of a worker")
    assert capfd.readouterr().err.startswith("error: BrokenPipeError: of a worker")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserValueError("a mistake"), 1),
        (ValueError("of the model's code"), 1),
        (damaged(Path("best.json"), "JSON", "{"), 3),
        (UserConnectionError("a wrong version"), 1),
        (UserClusterError("no worker"), 4),
    ],
)
def test_exit_codes_tell_what_to_do(error: Exception, code: int) -> None:
    FLAGS.mark_as_parsed()
    with pytest.raises(SystemExit) as end, errors_as_lines():
        raise error
    assert end.value.code == code
