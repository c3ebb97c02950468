"""A failure in a run is one line, and costs no checkpoint."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.cases import exhaustive
from tests.support.command_line import CommandLine, saved_variables
from tests.trainer.translating_models import write_data

STEPS, SAVED = 9, 4
NUM_READABLE = 5  # Steps, while there is a file `faulty`.
# By model the bytes of a file that are too few for a checkpoint.
NO_ROOM = {"Images": 1_000, "Sentences": 100_000}
_OFTEN = (
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 2; task.eval.interval_steps : 4; "
    "task.eval.images : false"
)


def _train(
    folder: Path, name: str, steps: int, max_bytes: int | None = None
) -> tuple[int, str]:
    """Runs the model that a folder is named for, and returns code and output."""
    trainer = CommandLine(folder).start_trainer(
        f"--model=mine.faulty_models.{folder.name}",
        *(["--data_dir=."] if folder.name == "Sentences" else []),
        f"--logdir={name}",
        f"--max_steps={steps}",
        _OFTEN,
        output=folder / "output",
        max_bytes=max_bytes,
    )
    return trainer.wait(), (folder / "output").read_text()


@pytest.fixture(scope="module", params=["Images", exhaustive("Sentences")])
def folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A folder for runs of a model."""
    folder = tmp_path_factory.mktemp("faults") / request.param
    (folder / "mine").mkdir(parents=True)
    for file in ("faulty_models.py", "translating_models.py"):
        shutil.copy(Path(__file__).with_name(file), folder / "mine")
    if request.param == "Sentences":  # Images are those that other tests prepared.
        write_data(folder)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run that has not failed."""
    code, output = _train(folder, "whole", STEPS)
    assert code == 0, output
    return folder / "whole"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["input", "disk"])
def test_a_failed_run_resumes(whole: Path, name: str) -> None:
    """The newest checkpoint is kept, and training ends as `whole`."""
    run = whole.with_name(f"resumed_{name}")
    {"input": _fail_in_the_input, "disk": _fill_the_disk}[name](whole.parent, run.name)
    kept = saved_variables(run, SAVED)
    assert kept == saved_variables(whole, SAVED)
    code, output = _train(whole.parent, run.name, STEPS)
    assert code == 0, output
    assert re.search(rf"(?m)^Resumed\b.*\b{SAVED}\b", output)
    got = saved_variables(run, STEPS)
    assert got == saved_variables(whole, STEPS) != kept
    metrics = [(path / "metrics.jsonl").read_text() for path in (run, whole)]
    assert metrics[0] == metrics[1]


def _fail_in_the_input(folder: Path, name: str) -> tuple[int, str]:
    """Returns code and output of a run whose input fails."""
    (folder / "faulty").touch()
    code, output = _train(folder, name, STEPS)
    (folder / "faulty").unlink()
    return code, output


def test_an_input_that_raises_is_told_with_the_users_lines(folder: Path) -> None:
    code, output = _fail_in_the_input(folder, "input")
    assert code == 1
    assert f"step {NUM_READABLE}/{STEPS}" in output
    first, *lines, last = output.partition("error: ")[2].splitlines()
    assert first == (
        "In reading the input: ConnectionError: the shelf does not answer asked twice"
    )
    file = re.escape(str(folder / "mine" / "faulty_models.py"))
    assert re.fullmatch(rf'  File "{file}", line \d+, in \w+', lines[-2])
    assert lines[-1].startswith("    raise ConnectionError(")
    assert "input/traceback.txt" in last


def _fill_the_disk(folder: Path, name: str) -> tuple[int, str]:
    """Returns code and output of a run that has no room for a checkpoint."""
    assert _train(folder, name, SAVED)[0] == 0
    return _train(folder, name, STEPS, NO_ROOM[folder.name])


def test_a_disk_that_takes_no_more_is_told(folder: Path) -> None:
    code, output = _fill_the_disk(folder, "disk")
    assert code == 1
    (line,) = output.partition("error: ")[2].splitlines()
    told = rf"'{os.strerror(errno.EFBIG)}'.*\bulimit\b.*\bcheckpoints\b"
    assert re.search(told, line)
