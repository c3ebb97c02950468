"""Data and directories that can't be read or written are told in a line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.trainer.command_line import CommandLine
from tests.trainer.translating_models import write_data

HERE = Path(__file__).parent
LATIN = "caf\xe9\tcaf\xe9\n".encode("latin-1")

# Name of the mistake -> an override, or the directory of the run; and what is said.
MISTAKES = {
    "folder_for_a_file": ("input.vocab_file : mine", "there is no file .*mine"),
    "no_vocabulary": (
        "input.vocab_file : train.same",
        "SentencePiece; .*train.same is",
    ),
    "cut_vocabulary": ("input.vocab_file : cut.model", "SentencePiece; .*cut.model is"),
    "other_encoding": (
        "input.data[0].file : latin.tsv",
        "line 1 of .*latin.tsv is not",
    ),
    "one_column": ("input.data[0].file : one.tsv", "line 2 of .*one.tsv has 1 column"),
    "empty_file": ("input.data[0].file : empty.tsv", "empty.tsv is empty"),
    "read_only_directory": (
        "--logdir=/proc/self/run",
        "can be written; got /proc/self",
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Of each mistake the exit code, standard output and standard error."""
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
    program = CommandLine(folder).start(str(HERE / "many_command_lines.py"))
    output, errors = program.communicate(json.dumps(command_lines))
    assert program.returncode == 0, errors
    assert not (folder / "run").exists()
    return dict(zip(MISTAKES, json.loads(output), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_told_in_a_line(told: dict[str, tuple[int, str, str]], name: str) -> None:
    code, output, errors = told[name]
    assert (code, output) == (1, "")
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1, errors
    assert re.search(MISTAKES[name][1], errors), errors
