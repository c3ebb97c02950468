"""A failure in a run is one line, and costs no checkpoint."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cases import exhaustive
from tests.support.command_line import CommandLine, saved_variables
from tests.trainer.translating_models import write_data

HERE = Path(__file__).parent
STEPS, SAVED = 9, 4
NUM_READABLE = 5  # Steps, while there is a file `faulty`.
_OFTEN = (
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 2; task.eval.interval_steps : 4; "
    "task.eval.images : false"
)
# Name of the model -> the size of files that has no room for a checkpoint.
MODELS = {"Images": 1_000, "Sentences": 100_000}


@dataclass(frozen=True)
class Run:
    """A run that failed and went on.

    Attributes:
        folder: of the runs.
        name: of this one, beside `whole`.
        code: the exit code of the failure.
        said: what was said.
        kept: the variables that the newest checkpoint held after the failure.
    """

    folder: Path
    name: str
    code: int
    said: str
    kept: dict[str, bytes]

    @property
    def error(self) -> list[str]:
        """The lines of the error."""
        _, found, text = self.said.partition("error: ")
        assert found, self.said
        return text.splitlines()


class Runs:
    """The runs of a model in a folder of its own, each made when it is asked for."""

    def __init__(self, folder: Path, model: str):
        self._folder, self._model = folder, model
        (folder / "mine").mkdir()
        for file in ("faulty_models.py", "translating_models.py"):
            shutil.copy(HERE / file, folder / "mine")
        write_data(folder)
        self.run = functools.cache(self._run)
        self.whole = functools.cache(self._whole)

    def _whole(self) -> Path:
        """Returns the folder of a run that has not failed."""
        assert self._train("whole", STEPS) == 0, self._said()
        return self._folder / "whole"

    def _run(self, fault: str) -> Run:
        """Makes a run fail and resume."""
        code = {"input": self._fail_of_input, "disk": self._fail_of_disk}[fault]()
        said = self._said()
        kept = saved_variables(self._folder / fault, SAVED)
        assert self._train(fault, STEPS) == 0, self._said()
        assert re.search(rf"(?m)^Resumed\b.*\b{SAVED}\b", self._said())
        return Run(self._folder, fault, code, said, kept)

    def _fail_of_input(self) -> int:
        (self._folder / "faulty").touch()
        code = self._train("input", STEPS)
        (self._folder / "faulty").unlink()
        return code

    def _fail_of_disk(self) -> int:
        assert self._train("disk", SAVED) == 0
        return self._train("disk", STEPS, MODELS[self._model])

    def _train(self, name: str, steps: int, max_bytes: int | None = None) -> int:
        trainer = CommandLine(self._folder).start_trainer(
            f"--model=mine.faulty_models.{self._model}",
            "--data_dir=.",
            f"--logdir={name}",
            f"--max_steps={steps}",
            _OFTEN,
            output=self._folder / "said",
            max_bytes=max_bytes,
        )
        return trainer.wait()

    def _said(self) -> str:
        return (self._folder / "said").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    return {model: Runs(tmp_path_factory.mktemp(model), model) for model in MODELS}


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        exhaustive("Images", "disk"),
        ("Images", "input"),
        exhaustive("Sentences", "disk"),
        exhaustive("Sentences", "input"),
    ],
)
def test_the_run_goes_on_from_the_last_checkpoint(
    runs: dict[str, Runs], model: str, fault: str
) -> None:
    whole, run = runs[model].whole(), runs[model].run(fault)
    assert run.code == 1
    assert run.kept == saved_variables(whole, SAVED)
    got = saved_variables(run.folder / fault, STEPS)
    assert got == saved_variables(whole, STEPS)
    assert got != run.kept
    texts = [(run.folder / n / "metrics.jsonl").read_text() for n in (fault, "whole")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("model", ["Images", exhaustive("Sentences")])
def test_an_input_that_raises_is_told_with_the_users_lines(
    runs: dict[str, Runs], model: str
) -> None:
    run = runs[model].run("input")
    assert f"step {NUM_READABLE}/{STEPS}" in run.said
    first, *lines, last = run.error
    assert first.startswith(
        "In reading the input: ConnectionError: the shelf does not "
    )
    assert first.endswith("answer asked twice")
    file = re.escape(str(run.folder / "mine" / "faulty_models.py"))
    assert re.fullmatch(rf'  File "{file}", line \d+, in \w+', lines[-2])
    assert lines[-1].startswith("    raise ConnectionError(")
    assert "input/traceback.txt" in last


@pytest.mark.parametrize("model", ["Images", exhaustive("Sentences")])
def test_a_disk_that_takes_no_more_is_told(runs: dict[str, Runs], model: str) -> None:
    run = runs[model].run("disk")
    (line,) = run.error
    told = rf"'{os.strerror(errno.EFBIG)}'.*\bulimit\b.*\bcheckpoints\b"
    assert re.search(told, line)
