"""Documents: lines, or all lines up to a blank one."""

import numpy as np
import pytest

from lingvo_pipe.input.text.documents import BLANK_LINES, LINES, Documents
from lingvo_pipe.input.text.line_file import LineFile


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
    with pytest.raises(ValueError, match=r"blank.*/0\.txt, .*/1\.txt"):
        documents(tmp_path, separated_by, "\n\n", " ")
    with pytest.raises(ValueError, match=r"blank.*/0\.txt\b(?!,)"):
        documents(tmp_path, separated_by, "\n\n")


@pytest.mark.parametrize(
    ("separated_by", "text"),
    [(LINES, "a\n\n" + "b" * 2**21), (BLANK_LINES, "a\n\n" + "b\n" * 2**20)],
)
def test_a_document_of_megabytes_is_refused(tmp_path, separated_by, text):
    """Each batch would take minutes, and nobody would know why."""
    message = r"1,048,576.*\b3\b.*/0\.txt.*2,097,15"
    with pytest.raises(ValueError, match=message):
        documents(tmp_path, separated_by, text)
    assert len(documents(tmp_path, LINES, "b" * 2**20)) == 1
