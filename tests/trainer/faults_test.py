"""What fails while a run goes on is told in a line, and costs no checkpoint."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.command_line import CommandLine, saved_variables
from tests.trainer.forked_trainers import ForkedTrainers
from tests.trainer.translating_models import write_data

HERE = Path(__file__).parent
STEPS, SAVED = 9, 4
NUM_READABLE = 5  # Steps, while there is a file `faulty`.
_OFTEN = (
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 2; task.eval.interval_steps : 4; "
    "task.eval.pictures : false"
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


class _Runs:
    """The runs of a model in a folder of its own."""

    def __init__(self, folder: Path, model: str):
        self._folder, self._model = folder, model
        (folder / "mine").mkdir()
        for file in ("faulty_models.py", "translating_models.py"):
            shutil.copy(HERE / file, folder / "mine")
        write_data(folder)

    def all(self) -> dict[str, Run]:
        with ForkedTrainers(CommandLine(self._folder), self._folder / "said") as forks:
            self._forks = forks
            self._train("whole", STEPS)
            return {"input": self._input(), "disk": self._disk()}

    def _train(self, name: str, steps: int, most_bytes: int | None = None) -> int:
        self._forks.start(
            f"--model=mine.faulty_models.{self._model}",
            "--data_dir=.",
            f"--logdir={name}",
            f"--max_steps={steps}",
            _OFTEN,
            most_bytes=most_bytes,
        )
        return self._forks.wait()

    def _input(self) -> Run:
        (self._folder / "faulty").touch()
        code = self._train("input", STEPS)
        (self._folder / "faulty").unlink()
        return self._gone_on("input", code)

    def _disk(self) -> Run:
        assert self._train("disk", SAVED) == 0
        return self._gone_on("disk", self._train("disk", STEPS, MODELS[self._model]))

    def _gone_on(self, name: str, code: int) -> Run:
        said = self._forks.said()
        kept = saved_variables(self._folder / name, SAVED)
        assert self._train(name, STEPS) == 0, self._forks.said()
        assert f"Resumed from step {SAVED}." in self._forks.said()
        return Run(self._folder, name, code, said, kept)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Run]]:
    folders = {model: tmp_path_factory.mktemp(model) for model in MODELS}

    def run(model: str) -> dict[str, Run]:
        return _Runs(folders[model], model).all()

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(MODELS, pool.map(run, MODELS), strict=True))


@pytest.mark.parametrize("fault", ["input", "disk"])
@pytest.mark.parametrize("model", MODELS)
def test_the_run_goes_on_from_the_last_checkpoint(
    runs: dict[str, dict[str, Run]], model: str, fault: str
) -> None:
    run = runs[model][fault]
    assert run.code == 1
    assert run.kept == saved_variables(run.folder / "whole", SAVED)
    got = saved_variables(run.folder / fault, STEPS)
    assert got == saved_variables(run.folder / "whole", STEPS)
    assert got != run.kept
    texts = [(run.folder / n / "metrics.jsonl").read_text() for n in (fault, "whole")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("model", MODELS)
def test_an_input_that_raises_is_told_with_the_users_lines(
    runs: dict[str, dict[str, Run]], model: str
) -> None:
    run = runs[model]["input"]
    assert f"step {NUM_READABLE}/{STEPS}" in run.said
    first, *lines, last = run.error
    assert first == "ConnectionError: the shelf does not answer asked twice"
    file = re.escape(str(run.folder / "mine" / "faulty_models.py"))
    assert re.fullmatch(rf'  File "{file}", line \d+, in \w+', lines[-2])
    assert lines[-1].startswith("    raise ConnectionError(")
    assert last == "The traceback is in input/traceback.txt."


@pytest.mark.parametrize("model", MODELS)
def test_a_disk_that_takes_no_more_is_told(
    runs: dict[str, dict[str, Run]], model: str
) -> None:
    run = runs[model]["disk"]
    (line,) = run.error
    assert line.startswith("What a run writes must be allowed its size; got 'File too ")
    assert line.endswith("Checkpoints that were saved before are as they were.")
