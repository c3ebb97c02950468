"""Data and directories that can't be read or written are told in a line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.trainer.translating_models import write_data

HERE = Path(__file__).parent
LATIN = "caf\xe9\tcaf\xe9\n".encode("latin-1")

# Name of the mistake -> an override, or the directory of the run; and what is said.
MISTAKES = {
    "folder_for_a_file": (
        "input.vocab_file : mine",
        r"vocab_file\b.*'mine'.*\./mine\b",
    ),
    "no_vocabulary": (
        "input.vocab_file : train.same",
        r"SentencePiece.*/train\.same\b",
    ),
    "cut_vocabulary": ("input.vocab_file : cut.model", r"SentencePiece.*/cut\.model\b"),
    "other_encoding": (
        "input.data[0].file : latin.tsv",
        r"/latin\.tsv\b.*UTF-8.*\bline 1\b",
    ),
    "one_column": (
        "input.data[0].file : one.tsv",
        r"line 2 of .*/one\.tsv\b.*\b1\b.*\b0\b",
    ),
    "empty_file": ("input.data[0].file : empty.tsv", r"/empty\.tsv\b.*\bempty\b"),
    "read_only_directory": (
        "--logdir=/proc/self/run",
        r"logdir\b.*/proc/self/run \(.*--logdir",
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, standard output and standard error of each mistake."""
    folder = tmp_path_factory.mktemp("unreadable")
    (folder / "mine").mkdir()
    shutil.copy(HERE / "translating_models.py", folder / "mine")
    write_data(folder)
    (folder / "cut.model").write_bytes((folder / "letters.model").read_bytes()[:-9])
    (folder / "latin.tsv").write_bytes(LATIN)
    (folder / "one.tsv").write_bytes(b"a\ta\na b\n")
    (folder / "empty.tsv").write_bytes(b"")
    model = ["--model=mine.translating_models.Letters", "--data_dir=."]
    command_lines = [
        [*model, text]
        if text.startswith("--")
        else [*model, "--logdir=run", f"--model_params_override={text}"]
        for text, _ in MISTAKES.values()
    ]
    outcomes = CommandLine(folder).run_trainers(command_lines)
    assert not (folder / "run").exists()
    return dict(zip(MISTAKES, outcomes, strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_told_in_a_line(told: dict[str, tuple[int, str, str]], name: str) -> None:
    code, output, errors = told[name]
    assert (code, output) == (1, "")
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1, errors
    assert re.search(MISTAKES[name][1], errors), errors
