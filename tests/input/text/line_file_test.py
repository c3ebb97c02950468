"""Lines of files: as Python splits them at newlines, whatever else they hold."""

import random

import numpy as np
import pytest

from lingvo_pipe.input.text import line_file
from lingvo_pipe.input.text.line_file import LineFile


def lines_of(content, tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    file = LineFile(str(path))
    return [file[number] for number in range(len(file))]


@pytest.mark.parametrize("block", [5, 1 << 20])
@pytest.mark.parametrize("ends", [True, False])
def test_any_text_is_split_at_newlines_alone(tmp_path, monkeypatch, block, ends):
    monkeypatch.setattr(line_file, "_BLOCK_BYTES", block)
    monkeypatch.setattr(line_file, "_BLOCK_LINES", block)
    draw = random.Random(0)
    parts = ["a", "é", "語", " ", "\t", "\u2028", "\x85", "\x0c", "\x1c", "\n", "\n\n"]
    for _ in range(30):
        text = "".join(draw.choices(parts, k=40)) + "x" + "\n" * ends
        wanted = text.removesuffix("\n").split("\n")
        lines = lines_of(text.encode(), tmp_path)
        assert [line.decode() for line in lines] == wanted


def test_lines_may_end_as_on_windows_and_files_begin_with_a_mark(tmp_path):
    content = b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree"
    assert lines_of(content, tmp_path) == [b"one", b"two", b"", b"three"]


def test_several_lines_are_one_text(tmp_path):
    (tmp_path / "file").write_text("a\nb\nc\nd\n")
    assert LineFile(str(tmp_path / "file")).between(1, 3) == b"b\nc"


def test_blank_lines_are_told(tmp_path):
    lines = ["x", "", " \t", "\r", "語", " y "]
    (tmp_path / "file").write_bytes("\n".join([*lines, ""]).encode())
    blank = LineFile(str(tmp_path / "file")).is_blank()
    np.testing.assert_array_equal(blank, [False, True, True, True, False, False])


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, content):
    """Also one of which an editor has written no more than the mark."""
    with pytest.raises(ValueError, match=r"/file\.txt.*empty"):
        lines_of(content, tmp_path)


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_a_line_that_is_not_utf8_is_named(tmp_path, monkeypatch, block):
    monkeypatch.setattr(line_file, "_BLOCK_LINES", block)
    with pytest.raises(ValueError, match=r"UTF-8.*\b3\b.*/file\.txt"):
        lines_of(b"one\ntwo\nGr\xfc\xdfe\nfour\n", tmp_path)
