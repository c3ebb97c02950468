"""A run that is killed over and over, or asked to stop, ends as one that was not.

Three models are killed seventy-two times, and each start trains in another
way: on other devices, under another schedule, with other recomputation and replicas.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from lingvo_pipe.cli.error_output import STOPPED_CODE
from tests.support.command_line import (
    DIGITS,
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)
from tests.trainer.killed_runs import Kill, KilledRun, Moment
from tests.trainer.translating_models import write_data

_OTHER_MODEL = "task.train.learning_rate : 0.05"
# Of each run of a model; it is killed as often in all.
_KILLS = Counter(
    {
        Moment.STARTING: 1,
        Moment.STEPPING: 2,
        Moment.SAVING: 2,
        Moment.EVALUATING: 1,
    }
)


@dataclass(frozen=True)
class Model:
    """A model, and how it is trained.

    Attributes:
        flags: that choose it.
        steps: of its run.
        save_interval: in steps.
        eval_interval: in steps.
    """

    flags: tuple[str, ...]
    steps: int
    save_interval: int
    eval_interval: int

    @property
    def all_flags(self) -> tuple[str, ...]:
        """All flags but --logdir and the way to train."""
        return (*self.flags, f"--max_steps={self.steps}")

    def way(self, num_devices: int = 2, **pipeline: object) -> tuple[str, ...]:
        """Returns the flags for a way to train, with some params of the pipeline."""
        override = {
            "task.train.report_interval_steps": 1,
            "task.train.save_interval_steps": self.save_interval,
            "task.eval.interval_steps": self.eval_interval,
            "task.eval.images": False,
            "task.pipeline.num_batch_shards": 2,
            **{f"task.pipeline.{name}": value for name, value in pipeline.items()},
        }
        text = "; ".join(f"{path} : {value}" for path, value in override.items())
        return (f"--devices={num_devices}", f"--model_params_override={text}")

    def ways(self) -> list[tuple[str, ...]]:
        """Returns ways that all leave the same bytes."""
        return [
            self.way(),
            self.way(1, recompute="never"),
            self.way(3, schedule="1f1b"),
            self.way(2, schedule="1f1b", recompute="except_last"),
            self.way(2, schedule="zero_bubble"),
            self.way(4, num_replicas=2),
            self.way(2, num_replicas=2, recompute="never"),
            self.way(2, schedule="interleaved", stages_per_device=2),
        ]


# Text in packed rows, from an encoder to a decoder with tied embeddings.
_LETTERS = ("--model=mine.translating_models.Letters", "--data_dir=.")
MODELS = {
    "digits": Model((DIGITS,), steps=40, save_interval=3, eval_interval=7),
    "letters": Model(_LETTERS, steps=150, save_interval=5, eval_interval=13),
    "small": Model((SMALL,), steps=100, save_interval=5, eval_interval=13),
}
# Of each model; each run is killed as often as _KILLS says, so there are 48 kills.
NUM_RUNS = {"digits": 1, "letters": 3, "small": 4}
STOPPED = "small"  # The model that is asked to stop.


@dataclass(frozen=True)
class Campaign:
    """A run of a model that is killed, and the seed of when and how it trains."""

    model: str
    seed: int


CAMPAIGNS = {
    f"{name}{seed}": Campaign(name, seed)
    for name, number in NUM_RUNS.items()
    for seed in range(number)
}


class Runs:
    """Runs below a folder: each model undisturbed, and each campaign with its kills."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.command_line = CommandLine(folder)
        write_small_model(folder)
        shutil.copy(Path(__file__).with_name("translating_models.py"), folder / "mine")
        write_data(folder)
        self.whole = functools.cache(self._whole)

    def _whole(self, name: str) -> Path:
        """Trains a model as it is; returns the run's directory."""
        model, logdir = MODELS[name], self.folder / name
        self.command_line.train(*model.all_flags, *model.way(), f"--logdir={logdir}")
        return logdir

    def killed(self, name: str) -> Path:
        """Returns the directory of a campaign's run."""
        return self.folder / f"killed_{name}"

    def kills(self, name: str) -> list[Kill]:
        """Trains a campaign's model through kills; returns these."""
        campaign = CAMPAIGNS[name]
        model = MODELS[campaign.model]
        run = KilledRun(
            self.command_line,
            model.all_flags,
            self.killed(name),
            model.eval_interval,
            campaign.seed,
            model.ways(),
        )
        return run.train(list(_KILLS.elements()))


def _train_through_a_stop(command_line: CommandLine, logdir: Path) -> list[str]:
    """Asks the trainer to stop when it trains; returns what was said on the way."""
    model = MODELS[STOPPED]
    ours = (*model.all_flags, f"--logdir={logdir}", *model.way())
    trainer = command_line.start_trainer(*ours)
    assert trainer.stderr is not None
    reports = iter(trainer.stderr.readline, "")
    assert any(line.startswith("step 3/") for line in reports)
    _, second = command_line.start_trainer(*ours).communicate()
    trainer.send_signal(signal.SIGTERM)
    output, _ = trainer.communicate()
    assert trainer.returncode == STOPPED_CODE
    *others, override = ours
    changing = command_line.start_trainer(*others, f"{override}; {_OTHER_MODEL}")
    _, changed = changing.communicate()
    command_line.train(*ours)
    return [second, output, changed]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("kills"))


@pytest.fixture(scope="module")
def said(runs: Runs) -> list[str]:
    return _train_through_a_stop(runs.command_line, runs.folder / "stopped")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_killed_run_ends_like_an_undisturbed_one(runs: Runs, name: str) -> None:
    kills = runs.kills(name)
    assert Counter(kill.wanted for kill in kills) == _KILLS
    # A kill may come too late, when the moment is over.
    hit = {kill.wanted for kill in kills if kill.is_hit}
    assert len(hit) >= len(Moment) - 1, kills
    model, whole = MODELS[CAMPAIGNS[name].model], runs.whole(CAMPAIGNS[name].model)
    killed = runs.killed(name)
    assert saved_variables(killed, model.steps) == saved_variables(whole, model.steps)
    text = (killed / "metrics.jsonl").read_text()
    assert text == (whole / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    trained = [line["step"] for line in lines if line["split"] == "train"]
    assert trained == list(range(1, model.steps + 1))
    tested = [line["step"] for line in lines if line["split"] == "test"]
    every = range(model.eval_interval, model.steps, model.eval_interval)
    assert tested == [*every, model.steps]
    assert lines[-1]["split"] == "test"


@pytest.mark.exhaustive
def test_a_run_that_was_asked_to_stop_is_saved(runs: Runs, said: list[str]) -> None:
    last = said[1].splitlines()[-1]
    found = re.search(r"SIGTERM.*\b(\d+)\b", last)
    assert found, last
    assert int(found[1]) < MODELS[STOPPED].steps
    folders = runs.folder / "stopped", runs.whole(STOPPED)
    steps = MODELS[STOPPED].steps
    variables = [saved_variables(folder, steps) for folder in folders]
    assert variables[0] == variables[1]
    texts = [(folder / "metrics.jsonl").read_text() for folder in folders]
    assert texts[0] == texts[1]


@pytest.mark.exhaustive
def test_a_second_trainer_is_refused(said: list[str]) -> None:
    told = r"error: .*/stopped\b.*\bprocess \d+\b.*--logdir\b.*\n"
    assert re.fullmatch(told, said[0])


@pytest.mark.exhaustive
def test_a_changed_model_is_refused(said: list[str]) -> None:
    assert "  task.train.learning_rate : 0.01 -> 0.05\n" in said[2]
    assert said[2].endswith("--allow_params_change=task.train.learning_rate.\n")
