"""Data and directories that can't be read or written are told in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.trainer.translating_models import write_data

HERE = Path(__file__).parent
LATIN = "caf\xe9\tcaf\xe9\n".encode("latin-1")

# An override, or the directory of the run; and what its error names.
MISTAKES = {
    "input.vocab_file : mine": "/mine",
    "input.vocab_file : train.same": "/train.same",
    "input.vocab_file : cut.model": "/cut.model",
    "input.data[0].file : latin.tsv": "/latin.tsv",
    "input.data[0].file : one.tsv": "/one.tsv",
    "input.data[0].file : empty.tsv": "/empty.tsv",
    "--logdir=/proc/self/run": "error: --logdir: ",
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
        for text in MISTAKES
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
    assert MISTAKES[name] in errors
