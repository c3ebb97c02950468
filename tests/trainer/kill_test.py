"""A run that is killed over and over, or asked to stop, ends as one that was not."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.trainer.command_line import DIGITS, CommandLine, saved_variables

STEPS = 40
FLAGS = (
    DIGITS,
    f"--max_steps={STEPS}",
    "--model_params_override=task.train.save_interval_steps : 7; "
    "task.train.report_interval_steps : 1; task.eval.interval_steps : 13",
)
OTHER_MODEL = "--model_params_override=task.train.learning_rate : 0.01"
NUM_KILLS = 3


def _train_through_kills(command_line: CommandLine, logdir: Path) -> int:
    """Kills the trainer soon after it has saved something; returns how often."""
    moments = random.Random(1)
    checkpoints = logdir / "checkpoints"
    for killed in range(NUM_KILLS):
        saved = set(checkpoints.glob("*.index"))
        trainer = command_line.start_trainer(*FLAGS, f"--logdir={logdir}")
        while trainer.poll() is None and set(checkpoints.glob("*.index")) <= saved:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.5))
        if trainer.poll() is not None:
            return killed
        trainer.kill()
        trainer.communicate()
    command_line.train(*FLAGS, f"--logdir={logdir}")
    return NUM_KILLS


def _train_through_a_stop(command_line: CommandLine, logdir: Path) -> list[str]:
    """Asks the trainer to stop when it trains; returns what was said on the way."""
    ours = (*FLAGS, f"--logdir={logdir}")
    trainer = command_line.start_trainer(*ours)
    assert trainer.stderr is not None
    reports = iter(trainer.stderr.readline, "")
    assert any(line.startswith("step 3/") for line in reports)
    _, second = command_line.start_trainer(*ours).communicate()
    trainer.send_signal(signal.SIGTERM)
    output, _ = trainer.communicate()
    assert trainer.returncode == 0
    _, changed = command_line.start_trainer(*ours, OTHER_MODEL).communicate()
    command_line.train(*ours)
    return [second, output, changed]


@pytest.fixture(scope="module")
def said(folder: Path) -> list[str]:
    return _train_through_a_stop(CommandLine(folder), folder / "stopped")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the run that was killed and the one that was not."""
    folder = tmp_path_factory.mktemp("kills")
    command_line = CommandLine(folder)
    with ThreadPoolExecutor(max_workers=2) as pool:
        killed = pool.submit(_train_through_kills, command_line, folder / "killed")
        command_line.train(*FLAGS, f"--logdir={folder / 'whole'}")
        assert killed.result() > 0, "the trainer was faster than the test"
    return folder


def test_the_variables_are_those_of_a_run_that_was_not_killed(folder: Path) -> None:
    whole = saved_variables(folder / "whole", STEPS)
    assert saved_variables(folder / "killed", STEPS) == whole


def test_metrics_are_those_of_a_run_that_was_not_killed(folder: Path) -> None:
    text = (folder / "killed" / "metrics.jsonl").read_text()
    assert text == (folder / "whole" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    trained = [line["step"] for line in lines if line["split"] == "train"]
    assert trained == list(range(1, STEPS + 1))
    tested = [line["step"] for line in lines if line["split"] == "test"]
    assert tested == [13, 26, 39, STEPS]
    assert lines[-1]["split"] == "test"


def test_a_run_that_was_asked_to_stop_is_saved(folder: Path, said: list[str]) -> None:
    last = said[1].splitlines()[-1]
    found = re.fullmatch(
        r"Stopped by SIGTERM after step (\d+), which is saved. The same command goes "
        "on from there.",
        last,
    )
    assert found, last
    assert int(found[1]) < STEPS
    whole = saved_variables(folder / "whole", STEPS)
    assert saved_variables(folder / "stopped", STEPS) == whole
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
    assert "  task.train.learning_rate : 0.05 -> 0.01\n" in said[2]
    assert said[2].endswith("by --allow_params_change=task.train.learning_rate.\n")
