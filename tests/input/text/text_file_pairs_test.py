"""Translations in text files: what is read, and which files are refused."""

import numpy as np
import pytest

from lingvo_pipe.input.text.text_file_pairs import ParallelFiles, TsvFile

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
    message = r"/x\.de\D+3\D.*/x\.en\D+2\D+3\b"
    with pytest.raises(ValueError, match=message):
        two_files().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (["a", " ", ""], ["x", "y", "z"], r"line 2\b.*/x\.de .*\b2\b"),
        (["a", "b", "c"], ["x", "y", "\t"], r"line 3\b.*/x\.en .*\b1\b"),
        (["", "b"], ["", "y"], r"line 1\b.*/x\.de .*/x\.en "),
    ],
)
def test_a_blank_line_is_named(tmp_path, sources, targets, message):
    write(tmp_path, sources, targets)
    with pytest.raises(ValueError, match=message):
        two_files().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("alone", (1, 0)),
        ("one\ttwo\tthree", (3, 0)),
        ("one\t ", (2, 1)),
        ("", (1, 1)),
    ],
)
def test_a_line_without_two_sentences_is_named(tmp_path, line, found):
    (tmp_path / "x.tsv").write_text(f"a\tb\n{line}\nc\td\n")
    columns, blank = found
    told = rf"line 2\b.*/x\.tsv\D+{columns}\D+{blank}\b"
    with pytest.raises(ValueError, match=told):
        one_file().Open(str(tmp_path))


@pytest.mark.parametrize("make", [two_files, one_file])
def test_missing_files_are_named(tmp_path, make):
    with pytest.raises(ValueError, match=r"'(x\.(de|tsv))'.*/\1\b"):
        make().Open(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (two_files, {"target_file": None}, "target_file.*None.*ParallelFiles"),
        (
            two_files,
            {"source_language": 3, "source_file": ""},
            "source_language.*3.*source_file.*''.*ParallelFiles",
        ),
        (
            one_file,
            {"target_language": "de"},
            "target_language.*source_language.*'de'.*TsvFile",
        ),
        (
            two_files,
            {"source_language": "en"},
            "target_language.*source_language.*'en'",
        ),
        (one_file, {"file": None}, r"^file\b.*None.*TsvFile"),
    ],
)
def test_params_that_are_unset_are_named(make, values, message):
    with pytest.raises(ValueError, match=message):
        make(**values)
