"""Paths, lines and documents of text files."""

import random

import numpy as np
import pytest

from lingvo_pipe.input.text import text_files
from lingvo_pipe.input.text.text_files import (
    BLANK_LINES,
    LINES,
    Documents,
    LineFile,
    data_path,
)
from tests.support.errors import fails


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.de").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("data_dir", ["/nowhere", None, "~"])
def test_a_file_is_found_wherever_its_name_says(folder, data_dir):
    path = str(folder / "train.de")
    assert data_path(path, data_dir) == path
    assert data_path("~/train.de", data_dir) == path


def test_relative_names_begin_at_data_dir(folder):
    assert data_path("train.de", str(folder)) == str(folder / "train.de")
    assert data_path("train.de", "~") == str(folder / "train.de")
    assert data_path("train.de", None) == "train.de"


@pytest.mark.parametrize("data_dir", ["~", None])
def test_near_names_are_named(folder, data_dir):
    with fails(path="file of text", got="tran.de") as info:
        data_path("tran.de", data_dir)
    assert info.value.hint.startswith("Did you mean 'train.de'? There is no file ")


@pytest.mark.parametrize("name", ["", "texts"])
def test_a_folder_is_no_file(folder, name):
    (folder / "texts").mkdir()
    with fails(got=name) as info:
        data_path(name, str(folder))
    assert info.value.hint.startswith(f"There is no file {folder}/{name}. ")


def lines_of(content, tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    file = LineFile(str(path))
    return [file[number] for number in range(len(file))]


@pytest.mark.parametrize("block", [5, 1 << 20])
@pytest.mark.parametrize("ends", [True, False])
def test_any_text_is_split_at_newlines_alone(tmp_path, monkeypatch, block, ends):
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", block)
    monkeypatch.setattr(text_files, "_BLOCK_LINES", block)
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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_several_lines_are_one_text(tmp_path, end):
    (tmp_path / "file").write_bytes(end.join("abcd").encode())
    assert LineFile(str(tmp_path / "file")).between(1, 3) == b"b\nc"


def test_blank_lines_are_named(tmp_path):
    lines = ["x", "", " \t", "\r", "語", " y "]
    (tmp_path / "file").write_bytes("\n".join([*lines, ""]).encode())
    blank = LineFile(str(tmp_path / "file")).is_blank()
    np.testing.assert_array_equal(blank, [False, True, True, True, False, False])


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, content):
    """Also one of which an editor has written no more than the mark."""
    with fails(path=f"{tmp_path}/file.txt", got="an empty file"):
        lines_of(content, tmp_path)


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_a_line_that_is_not_utf8_is_named(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_files, "_BLOCK_LINES", block)
    with fails(path=f"{tmp_path}/file.txt") as info:
        lines_of(b"one\ntwo\nGr\xfc\xdfe\nfour\n", tmp_path)
    assert info.value.got.endswith(" in line 3")


def documents(tmp_path, separated_by, *texts):
    files = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
        files.append(LineFile(str(tmp_path / f"{number}.txt")))
    return Documents(files, separated_by)


@pytest.mark.parametrize(
    ("separated_by", "wanted"),
    [
        (LINES, ["a", "b", "c", " d", "e", "f"]),
        (BLANK_LINES, ["a\nb", "c", " d\ne", "f"]),
    ],
)
def test_files_follow_one_another(tmp_path, separated_by, wanted):
    found = documents(tmp_path, separated_by, "a\nb\n\n \nc\n", "\n d\ne\n\nf")
    assert len(found) == len(wanted)
    texts = found.fetch(np.arange(len(found)))
    assert [text.decode() for text in texts] == wanted
    assert found.fetch(np.array([2, 0])) == [wanted[2].encode(), wanted[0].encode()]


@pytest.mark.parametrize("separated_by", [LINES, BLANK_LINES])
def test_blank_files_are_refused(tmp_path, separated_by):
    with fails(path=f"{tmp_path}/0.txt, {tmp_path}/1.txt"):
        documents(tmp_path, separated_by, "\n\n", " ")


@pytest.mark.parametrize(
    ("separated_by", "text", "lines"),
    [
        (LINES, "a\n\n" + "b" * 2**21, "3 to 3"),
        (BLANK_LINES, "a\n\n" + "b\n" * 2**20, "3 to 1,048,578"),
    ],
)
def test_a_document_of_megabytes_is_refused(tmp_path, separated_by, text, lines):
    """Each batch would take minutes, and nobody would know why."""
    got = len(text) - 3 - text.endswith("\n")
    with fails(path=f"{tmp_path}/0.txt, lines {lines}", got=got):
        documents(tmp_path, separated_by, text)
    assert len(documents(tmp_path, LINES, "b" * 2**20)) == 1
