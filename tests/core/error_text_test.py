"""Text of errors, errors of users and of disks, and the user's lines of code."""

from __future__ import annotations

import errno
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.error_text import (
    disk_problem,
    error_text,
    frames_text,
    plain_message,
    user_message,
)
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.base_layer import BaseLayer


def _misspells() -> None:
    Params().Set(cuont=2)


def _recurs(depth: int) -> None:
    if depth:
        _recurs(depth - 1)
    json.loads("{")


def _lines(fail: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Any kind.
        fail()
    return error_text(caught.value).splitlines()


def test_a_user_error_is_shown_as_it_is_with_the_line_that_raised_it() -> None:
    first, *lines = _lines(_misspells)
    assert first.startswith("cuont: ")
    assert f'  File "{__file__}"' in lines[-2]
    assert lines[-2].endswith(", in _misspells")
    assert lines[-1] == "    Params().Set(cuont=2)"


def test_the_innermost_lines_are_shown_and_none_of_libraries() -> None:
    first, *lines = _lines(lambda: _recurs(9))
    assert first.startswith("JSONDecodeError: ")
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 4
    assert all(f'"{__file__}"' in file for file in files)
    assert lines[-1] == '    json.loads("{")'


def _reads() -> None:
    raise LookupError("no such shelf\nnor board")


def test_an_error_in_a_function_called_by_tensorflow_is_shown_like_any_other() -> None:
    def batches() -> Iterator[int]:
        yield 1
        _reads()

    spec = tf.TensorSpec([], tf.int32)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    first, *lines = _lines(lambda: list(data))
    assert first == "LookupError: no such shelf nor board"
    assert lines[-2:] == [
        f'  File "{__file__}", line {_reads.__code__.co_firstlineno + 1}, in _reads',
        '    raise LookupError("no such shelf\\nnor board")',
    ]


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("x = 1\ndef f(:\n")
    lines = _lines(lambda: compile(file.read_text(), str(file), "exec"))
    assert lines[0] == "SyntaxError: invalid syntax"
    assert lines[-2:] == [f'  File "{file}", line 2, in its source', "    def f(:"]


def test_a_missing_file_is_named_without_its_line_and_no_launcher(
    tmp_path: Path,
) -> None:
    frame = traceback.FrameSummary(str(tmp_path / "gone.py"), 3, "FProp")
    installed = traceback.FrameSummary("/x/site-packages/y/z.py", 3, "call")
    frozen = traceback.FrameSummary("<frozen importlib>", 3, "call")
    launcher = traceback.FrameSummary("/home/me/bin/lingvo_pipe_trainer", 8, "<module>")
    text = frames_text([frozen, launcher, installed, frame])
    assert text == f'\n  File "{tmp_path}/gone.py", line 3, in FProp'


@pytest.mark.parametrize(
    "message",
    [
        "indices = 100 is not in [0, 10)",
        "Graph execution error:\n\nDetected at node a/b defined at (most recent call "
        "last):\n<stack traces unavailable>\nindices = 100 is not in [0, 10)\n\t "
        "[[{{node a/b}}]] [Op:__inference_f_1]",
        "Graph execution error:\n\nDetected at node a/b defined at (most recent call "
        'last):\n  File "x.py", line 1, in <module>\n\n  File "x.py", line 2, in f\n\n'
        "indices = 100 is not in [0, 10)\n\t [[{{node a/b}}]] [Op:__inference_f_1]",
        "indices = 100 is not in [0, 10)\n\t [[{{node a/b}}]]\nHint: If you want to "
        "see a list of allocated tensors, x.\n\n\t [[While/a_1]] [Op:__inference_f_1]",
        "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  {{function_node f}} indices "
        "= 100 is not in [0, 10)\n\t [[{{node a}}]]\n\t [[b/_9]]\n  (1) INVALID:  "
        "{{function_node f}} odd\n0 successful operations.\n[Op:f] name: ",
        "{{function_node __wrapped__G_device_/job:a/device:CPU:0}} indices = 100 "
        "is not in [0, 10) [Op:GatherV2] name: ",
        "{{function_node f}} Error in user-defined function passed to MapDataset:2 "
        "transformation with iterator: Iterator::Root::Map: indices = 100 is not in "
        "[0, 10) [Op:IteratorGetNext] name: ",
    ],
)
def test_text_of_tensorflow_around_a_message_is_removed(message: str) -> None:
    assert plain_message(message) == "indices = 100 is not in [0, 10)"


# ---- Errors of users.


def _fails_itself() -> None:
    raise ValueError("a model's own")


def _params() -> Params:
    p = Params()
    p.Define("count", 1, "")
    return p


@pytest.mark.parametrize(
    ("fail", "is_user_error"),
    [
        (lambda: _params().FromText("count : x"), True),
        (lambda: _params().Set(cuont=2), True),
        (lambda: BaseLayer(BaseLayer.Params().Set(name="a"))(), False),
        (lambda: _params().Define("name", 1), False),  # type: ignore[call-arg]
        (_fails_itself, False),
        (lambda: dict[str, int]()["absent"], False),
    ],
    ids=["unreadable", "unknown", "unimplemented", "miscalled", "users", "bug"],
)
def test_only_our_checks_raise_user_errors(
    fail: Callable[[], Any], is_user_error: bool
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Any kind.
        fail()
    line = user_message(caught.value)
    assert line == (str(caught.value) if is_user_error else None)


# ---- Disks that cannot be written.

# The number of an error -> a word of its remedy.
REMEDIES = {
    errno.ENOSPC: "Free",
    errno.EDQUOT: "Free",
    errno.EFBIG: "ulimit",
    errno.EROFS: "Mount",
}


def _pythons(number: int, *file: str) -> Exception:
    return OSError(number, os.strerror(number), *file)


def _tensorflows(number: int, before: str) -> Exception:
    file = "/my runs/ckpt.index"
    text = f"{{{{function_node f}}}} {before}{file}; {os.strerror(number)} [Op:SaveV2]"
    return tf.errors.ResourceExhaustedError(None, None, text)


@pytest.mark.parametrize("number", REMEDIES)
def test_a_disk_problem_has_file_reason_and_remedy(number: int) -> None:
    for error in (
        _pythons(number, "/my runs/ckpt.index"),
        _tensorflows(number, ""),
        _tensorflows(number, "Failed to write: "),
    ):
        line = disk_problem(error)
        assert line is not None
        reason = re.escape(os.strerror(number))
        pattern = (
            rf"^Cannot write /my runs/ckpt\.index: '{reason}'.*\b{REMEDIES[number]}\b"
        )
        assert re.search(pattern, line)
        assert "\n" not in line


def test_an_unknown_file_is_left_out() -> None:
    line = disk_problem(_pythons(errno.ENOSPC))
    assert line is not None
    assert re.search(rf"'{os.strerror(errno.ENOSPC)}'[^/]*\bFree\b[^/]*$", line)


@pytest.mark.parametrize(
    "error",
    [
        _pythons(errno.ENOENT, "/run"),
        _pythons(errno.EIO),
        ValueError("logdir: /run; No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
    ],
)
def test_other_errors_are_not_disk_problems(error: Exception) -> None:
    assert disk_problem(error) is None
