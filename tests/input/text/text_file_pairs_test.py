"""Translations in text files: what is read, and which files are refused."""

import numpy as np
import pytest

from lingvo_pipe.input.text.text_file_pairs import ParallelFiles, TsvFile
from tests.support.errors import fails

PAIRS = [("Guten Tag.", "Good day."), ("Grüße", "Regards"), ("一", "one")]


def write(folder, sources, targets):
    (folder / "x.de").write_text("".join(f"{s}\n" for s in sources), encoding="utf-8")
    (folder / "x.en").write_text("".join(f"{t}\n" for t in targets), encoding="utf-8")


def two_files(**values):
    p = ParallelFiles.Params().Set(source_language="de", target_language="en")
    return p.Set(source_file="x.de", target_file="x.en").Set(**values).Instantiate()


def one_file(**values):
    p = TsvFile.Params().Set(source_language="de", target_language="en", file="x.tsv")
    return p.Set(**values).Instantiate()


@pytest.fixture(params=[two_files, one_file])
def source(request, tmp_path):
    write(tmp_path, *zip(*PAIRS, strict=True))
    lines = "".join(f"{one}\t{other}\n" for one, other in PAIRS)
    (tmp_path / "x.tsv").write_text(lines, encoding="utf-8")
    return request.param().Open(str(tmp_path))


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2], [1, 1, 0]])
def test_sentences_are_read_in_any_order(source, numbers):
    assert source.num_sentences == 3
    fetched = source.Fetch(np.array(numbers))
    found = [[text.decode() for text in texts] for texts in fetched]
    texts = list(map(list, zip(*(PAIRS[n] for n in numbers), strict=True)))
    assert found == [*texts, ["de"] * len(numbers), ["en"] * len(numbers)]


def test_a_sentences_place_is_named(source):
    assert "line 2 of " in source.Where(1)
    assert "x.de and " in source.Where(1) or "x.tsv" in source.Where(1)


def test_files_of_different_lengths_are_refused(tmp_path):
    write(tmp_path, ["a", "b", "c"], ["a", "b"])
    with fails(got=f"3 in {tmp_path}/x.de and 2 in {tmp_path}/x.en"):
        two_files().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("sources", "targets", "got"),
    [
        (["a", " ", ""], ["x", "y", "z"], "a blank line 2 of DE (the first of 2)"),
        (["a", "b", "c"], ["x", "y", "\t"], "a blank line 3 of EN (the first of 1)"),
        (["", "b"], ["", "y"], "a blank line 1 of DE and of EN (the first of 1)"),
    ],
)
def test_a_blank_line_is_named(tmp_path, sources, targets, got):
    write(tmp_path, sources, targets)
    got = got.replace("DE", f"{tmp_path}/x.de").replace("EN", f"{tmp_path}/x.en")
    with fails(got=got):
        two_files().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("alone", "1 column, 0 of them blank"),
        ("one\ttwo\tthree", "3 columns, 0 of them blank"),
        ("one\t ", "2 columns, 1 of them blank"),
        ("", "1 column, 1 of them blank"),
    ],
)
def test_a_line_without_two_sentences_is_named(tmp_path, line, got):
    (tmp_path / "x.tsv").write_text(f"a\tb\n{line}\nc\td\n")
    with fails(path="file", got=f"line 2 of {tmp_path}/x.tsv with {got}"):
        one_file().Open(str(tmp_path))


@pytest.mark.parametrize(("make", "name"), [(two_files, "x.de"), (one_file, "x.tsv")])
def test_missing_files_are_named(tmp_path, make, name):
    with fails(got=name):
        make().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "values", "path", "got"),
    [
        (two_files, {"target_file": ""}, "ParallelFiles.target_file", ""),
        (two_files, {"source_language": 3}, "ParallelFiles.source_language", 3),
        (two_files, {"source_language": "en"}, "ParallelFiles.target_language", "en"),
        (one_file, {"file": None}, "TsvFile.file", None),
    ],
)
def test_params_that_are_unset_are_named(make, values, path, got):
    with fails(path=path, got=got):
        make(**values)
