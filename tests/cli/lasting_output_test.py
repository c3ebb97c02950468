"""A reader of the trainer's output that goes away ends no training."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lingvo_pipe.cli.lasting_output import _LastingFile
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.command_line import (
    DIGITS,
    ROOT,
    SMALL,
    CommandLine,
    messages,
    write_small_model,
)

PATIENCE = 300.0  # Seconds, on a busy machine.

# Prints lines until standard input ends, through streams that outlive their readers.
PROGRAM = """
import os, sys
from lingvo_pipe.cli.lasting_output import keep_output
keep_output()
for line in sys.stdin:
    print("out", line, end="")
    print("err", line, end="", file=sys.stderr)
    os.write(int(sys.argv[1]), b".")  # Both are written.
"""


@pytest.mark.parametrize("keeps_errors", [True, False])
@pytest.mark.parametrize("make", [os.pipe, os.openpty])
def test_lines_continue_where_a_reader_is(
    make: Callable[[], tuple[int, int]], keeps_errors: bool
) -> None:
    """Once a terminal that went away ended training."""
    (ours, theirs), (done, doing) = make(), os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(doing)],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=subprocess.PIPE if keeps_errors else theirs,
        cwd=ROOT,
        pass_fds=[doing],
        text=True,
        bufsize=1,
    )
    os.close(theirs)
    os.close(doing)
    assert program.stdin is not None
    program.stdin.write("1\n")
    assert os.read(done, 1)
    assert os.read(ours, 100).startswith(b"out 1")
    os.close(ours)  # As head does.
    for _ in range(2):
        program.stdin.write("2\n")
        assert os.read(done, 1)
    _, errors = program.communicate(timeout=PATIENCE)
    os.close(done)
    assert program.returncode == 0
    if keeps_errors:
        assert errors == "err 1\n" + 2 * "out 2\nerr 2\n"


def test_a_full_disk_under_the_log_loses_lines_alone() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with _LastingFile(descriptor, []) as file:
        assert file.write(b"line\n") == 5
    os.close(descriptor)


# The decoder with a model that repeats the lines, on a full disk.
DECODER = """
import os, sys
from types import SimpleNamespace
from lingvo_pipe import trainer
from lingvo_pipe.cli import use_jobs

def prepare(*unused):
    data = SimpleNamespace(params=SimpleNamespace(batch_size=1))
    log = lambda line: print(line, file=sys.stderr)
    return None, data, SimpleNamespace(path=None), [1], log

use_jobs._prepare = prepare
use_jobs.check_vocabulary = lambda path, data: None
use_jobs.Translator = lambda *unused: lambda lines, language: lines
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
trainer.run()
"""


def test_a_full_disk_under_texts_is_an_error(tmp_path: Path) -> None:
    """Once they were lost like lines of a log, and the exit code was 0."""
    (tmp_path / "texts").write_text("a\n")
    flags = (DIGITS, "--logdir=run", "--job=decoder", "--input_file=texts")
    run = CommandLine(tmp_path).run("-c", DECODER, *flags)
    *_, line = run.errors.splitlines()
    assert run.code == 1
    assert line.startswith("error: ")
    assert os.strerror(errno.ENOSPC) in line


@pytest.mark.exhaustive
def test_training_without_readers_goes_on(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    flags = [SMALL, "--logdir=run"]
    with CommandLine(tmp_path).start_trainer(*flags) as trainer:
        for stream in (trainer.stdout, trainer.stderr):
            assert stream is not None
            stream.close()
        trainer.stdout = trainer.stderr = None
        assert trainer.wait(PATIENCE) == 0
    assert read_metrics(tmp_path / "run")[-1]["step"] == 3


def test_a_list_that_nobody_reads_on_ends_quietly(tmp_path: Path) -> None:
    with CommandLine(tmp_path).start_trainer("--list_models") as trainer:
        assert trainer.stdout is not None
        trainer.stdout.close()
        trainer.stdout = None
        _, errors = trainer.communicate(PATIENCE)
    assert (trainer.returncode, messages(errors)) == (1, [])


def test_a_help_that_nobody_reads_on_ends_quietly() -> None:
    """Once absl's help, printed line by line, ended in a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lingvo_pipe.tools.commands", "train", "--help"]
    run = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (run.returncode, run.stderr) == (1, b"")
