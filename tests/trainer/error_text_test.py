"""What is told of an error, and which lines of code are the user's."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.error_text import error_text, frames_text, plain_message
from lingvo_pipe.hyperparams import Params


def _misspells() -> None:
    Params().Set(cuont=2)


def _recurs(depth: int) -> None:
    if depth:
        _recurs(depth - 1)
    json.loads("{")


def _told(fail: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Which one is not the point.
        fail()
    return error_text(caught.value).splitlines()


def test_a_fault_is_told_as_it_is_with_the_line_that_made_it() -> None:
    first, *lines = _told(_misspells)
    assert first.startswith("'cuont'")
    assert f'  File "{__file__}"' in lines[-2]
    assert lines[-2].endswith(", in _misspells")
    assert lines[-1] == "    Params().Set(cuont=2)"


def test_another_error_begins_with_its_kind() -> None:
    assert _told(lambda: dict[str, int]()["absent"])[0] == "KeyError: 'absent'"


def test_the_innermost_lines_are_shown_and_none_of_libraries() -> None:
    first, *lines = _told(lambda: _recurs(9))
    assert first.startswith("JSONDecodeError: ")
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 4
    assert all(f'"{__file__}"' in file for file in files)
    assert lines[-1] == '    json.loads("{")'


def _reads() -> None:
    raise LookupError("no such shelf\nnor board")


def test_an_error_in_a_function_that_tensorflow_called_is_told_like_any_other() -> None:
    def batches() -> Iterator[int]:
        yield 1
        _reads()

    spec = tf.TensorSpec([], tf.int32)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    first, *lines = _told(lambda: list(data))
    assert first == "LookupError: no such shelf nor board"
    assert lines[-2:] == [
        f'  File "{__file__}", line {_reads.__code__.co_firstlineno + 1}, in _reads',
        '    raise LookupError("no such shelf\\nnor board")',
    ]


def test_a_file_that_is_no_python_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("x = 1\ndef f(:\n")
    told = _told(lambda: compile(file.read_text(), str(file), "exec"))
    assert told[0] == "SyntaxError: invalid syntax"
    assert told[-2:] == [f'  File "{file}", line 2, in its source', "    def f(:"]


def test_a_file_that_is_gone_is_named_without_its_line(tmp_path: Path) -> None:
    frame = traceback.FrameSummary(str(tmp_path / "gone.py"), 3, "FProp")
    installed = traceback.FrameSummary("/x/site-packages/y/z.py", 3, "call")
    frozen = traceback.FrameSummary("<frozen importlib>", 3, "call")
    text = frames_text([frozen, installed, frame])
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
        "{{function_node __wrapped__G_device_/job:a/device:CPU:0}} indices = 100 "
        "is not in [0, 10) [Op:GatherV2] name: ",
        "{{function_node f}} Error in user-defined function passed to MapDataset:2 "
        "transformation with iterator: Iterator::Root::Map: indices = 100 is not in "
        "[0, 10) [Op:IteratorGetNext] name: ",
    ],
)
def test_what_tensorflow_puts_around_a_message_is_left_out(message: str) -> None:
    assert plain_message(message) == "indices = 100 is not in [0, 10)"
