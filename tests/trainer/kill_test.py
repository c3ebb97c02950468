"""A run that is killed over and over ends as one that was not."""

from __future__ import annotations

import json
import random
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
