"""A run that is killed over and over, or asked to stop, ends as one that was not."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.command_line import DIGITS, CommandLine, saved_variables
from tests.trainer.forked_trainers import ForkedTrainers
from tests.trainer.killed_runs import Kill, KilledRun, Moment
from tests.trainer.translating_models import write_data

_OTHER_MODEL = "--model_params_override=task.train.learning_rate : 0.05"
# Of each model; it is killed as often in all.
_KILLS = Counter(
    {
        Moment.STARTING: 2,
        Moment.STEPPING: 3,
        Moment.SAVING: 3,
        Moment.EVALUATING: 2,
    }
)


@dataclass(frozen=True)
class Model:
    """A model, and how it is trained.

    Attributes:
        flags: that choose it.
        steps: of its run.
        save_interval: in steps, like the next.
        eval_interval: likewise.
    """

    flags: tuple[str, ...]
    steps: int
    save_interval: int
    eval_interval: int

    @property
    def all_flags(self) -> tuple[str, ...]:
        """All flags but --logdir."""
        override = (
            "--model_params_override=task.train.report_interval_steps : 1; "
            f"task.train.save_interval_steps : {self.save_interval}; "
            f"task.eval.interval_steps : {self.eval_interval}; "
            "task.eval.pictures : false"
        )
        return (*self.flags, f"--max_steps={self.steps}", override)


MODELS = {
    "digits": Model((DIGITS,), steps=40, save_interval=3, eval_interval=7),
    # Text in packed rows, from an encoder to a decoder with tied embeddings.
    "letters": Model(
        ("--model=mine.translating_models.Letters", "--data_dir=."),
        steps=150,
        save_interval=5,
        eval_interval=13,
    ),
}
STOPPED = "letters"  # The model that is asked to stop.


def _train_twice(command_line: CommandLine, folder: Path, name: str) -> list[Kill]:
    """Trains a model as it is, then through kills; returns these."""
    model = MODELS[name]
    with ForkedTrainers(command_line, folder / f"{name}.txt") as trainers:
        trainers.start(*model.all_flags, f"--logdir={folder / name / 'whole'}")
        assert trainers.wait() == 0, trainers.said()
        killed = folder / name / "killed"
        run = KilledRun(trainers, model.all_flags, killed, model.eval_interval, seed=1)
        return run.train(list(_KILLS.elements()))


def _train_through_a_stop(command_line: CommandLine, logdir: Path) -> list[str]:
    """Asks the trainer to stop when it trains; returns what was said on the way."""
    ours = (*MODELS[STOPPED].all_flags, f"--logdir={logdir}")
    trainer = command_line.start_trainer(*ours)
    assert trainer.stderr is not None
    reports = iter(trainer.stderr.readline, "")
    assert any(line.startswith("step 3/") for line in reports)
    _, second = command_line.start_trainer(*ours).communicate()
    trainer.send_signal(signal.SIGTERM)
    output, _ = trainer.communicate()
    assert trainer.returncode == 0
    _, changed = command_line.start_trainer(*ours, _OTHER_MODEL).communicate()
    command_line.train(*ours)
    return [second, output, changed]


@dataclass(frozen=True)
class Runs:
    """Runs below a folder, `whole` and `killed` of each model, and the kills."""

    folder: Path
    kills: dict[str, list[Kill]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("kills")
    (folder / "mine").mkdir()
    shutil.copy(Path(__file__).with_name("translating_models.py"), folder / "mine")
    write_data(folder)
    command_line = CommandLine(folder)

    def train(name: str) -> list[Kill]:
        return _train_twice(command_line, folder, name)

    with ThreadPoolExecutor(max_workers=2) as pool:
        return Runs(folder, dict(zip(MODELS, pool.map(train, MODELS), strict=True)))


@pytest.fixture(scope="module")
def folder(runs: Runs) -> Path:
    """Where the runs of the model are that is asked to stop."""
    return runs.folder / STOPPED


@pytest.fixture(scope="module")
def said(runs: Runs, folder: Path) -> list[str]:
    return _train_through_a_stop(CommandLine(runs.folder), folder / "stopped")


@pytest.mark.parametrize("name", MODELS)
def test_runs_were_killed_at_moments_of_every_kind(runs: Runs, name: str) -> None:
    kills = runs.kills[name]
    assert Counter(kill.wanted for kill in kills) == _KILLS
    assert {kill.wanted for kill in kills if kill.is_hit} == set(Moment), kills


@pytest.mark.parametrize("name", MODELS)
def test_the_variables_are_those_of_a_run_that_was_not_killed(
    runs: Runs, name: str
) -> None:
    steps = MODELS[name].steps
    whole = saved_variables(runs.folder / name / "whole", steps)
    assert saved_variables(runs.folder / name / "killed", steps) == whole


@pytest.mark.parametrize("name", MODELS)
def test_metrics_are_those_of_a_run_that_was_not_killed(runs: Runs, name: str) -> None:
    model = MODELS[name]
    text = (runs.folder / name / "killed" / "metrics.jsonl").read_text()
    assert text == (runs.folder / name / "whole" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    trained = [line["step"] for line in lines if line["split"] == "train"]
    assert trained == list(range(1, model.steps + 1))
    tested = [line["step"] for line in lines if line["split"] == "test"]
    every = range(model.eval_interval, model.steps, model.eval_interval)
    assert tested == [*every, model.steps]
    assert lines[-1]["split"] == "test"


def test_a_run_that_was_asked_to_stop_is_saved(folder: Path, said: list[str]) -> None:
    last = said[1].splitlines()[-1]
    found = re.fullmatch(
        r"Stopped by SIGTERM after step (\d+), which is saved. The same command goes "
        "on from there.",
        last,
    )
    assert found, last
    assert int(found[1]) < MODELS[STOPPED].steps
    whole = saved_variables(folder / "whole", MODELS[STOPPED].steps)
    assert saved_variables(folder / "stopped", MODELS[STOPPED].steps) == whole
    texts = [(folder / n / "metrics.jsonl").read_text() for n in ("stopped", "whole")]
    assert texts[0] == texts[1]


def test_a_second_trainer_is_refused(said: list[str]) -> None:
    assert re.fullmatch(
        "error: A run must be trained by one trainer at a time; .* is in use by "
        r"process \d+ of .*. Wait until it ends or stop it, or choose another "
        "--logdir.\n",
        said[0],
    )


def test_a_changed_model_is_refused(said: list[str]) -> None:
    assert "  task.train.learning_rate : 0.01 -> 0.05\n" in said[2]
    assert said[2].endswith("by --allow_params_change=task.train.learning_rate.\n")
