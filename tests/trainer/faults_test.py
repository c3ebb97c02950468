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
        "--data_dir=.",
        f"--logdir={name}",
        f"--max_steps={steps}",
        _OFTEN,
        output=folder / "output",
        max_bytes=max_bytes,
    )
    return trainer.wait(), (folder / "output").read_text()


@pytest.fixture(scope="module", params=["Images", exhaustive("Sentences")])
def whole(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A run of a model that has not failed, in a folder for others."""
    folder = tmp_path_factory.mktemp("faults") / request.param
    (folder / "mine").mkdir(parents=True)
    for file in ("faulty_models.py", "translating_models.py"):
        shutil.copy(Path(__file__).with_name(file), folder / "mine")
    write_data(folder)
    code, output = _train(folder, "whole", STEPS)
    assert code == 0, output
    return folder / "whole"


def _assert_resumes(whole: Path, name: str) -> None:
    """Asserts that the newest checkpoint is kept, and training ends as `whole`."""
    run = whole.with_name(name)
    kept = saved_variables(run, SAVED)
    assert kept == saved_variables(whole, SAVED)
    code, output = _train(whole.parent, name, STEPS)
    assert code == 0, output
    assert re.search(rf"(?m)^Resumed\b.*\b{SAVED}\b", output)
    got = saved_variables(run, STEPS)
    assert got == saved_variables(whole, STEPS) != kept
    metrics = [(path / "metrics.jsonl").read_text() for path in (run, whole)]
    assert metrics[0] == metrics[1]


def test_an_input_that_raises_is_told_with_the_users_lines(whole: Path) -> None:
    folder = whole.parent
    (folder / "faulty").touch()
    code, output = _train(folder, "input", STEPS)
    (folder / "faulty").unlink()
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
    _assert_resumes(whole, "input")


@pytest.mark.parametrize("resumes", [False, exhaustive(True)])
def test_a_disk_that_takes_no_more_is_told(whole: Path, resumes: bool) -> None:
    name = f"disk_{resumes}"
    assert _train(whole.parent, name, SAVED)[0] == 0
    code, output = _train(whole.parent, name, STEPS, NO_ROOM[whole.parent.name])
    assert code == 1
    (line,) = output.partition("error: ")[2].splitlines()
    told = rf"'{os.strerror(errno.EFBIG)}'.*\bulimit\b.*\bcheckpoints\b"
    assert re.search(told, line)
    if resumes:
        _assert_resumes(whole, name)
