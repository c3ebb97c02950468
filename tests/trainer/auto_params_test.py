"""A run whose pipeline is left to the planner, and goes on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import model_registry
from lingvo_pipe import auto_params
from lingvo_pipe.auto_params import AutoParams
from lingvo_pipe.hyperparams.text_diff import entries_by_path
from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.run_directory import RunDirectory
from tests.trainer.command_line import CommandLine

NAME = "lm.text.TransformerTiny"
AUTO = {"num_micro_batches": "auto", "schedule": "auto", "recompute": "auto"}
DEVICES = ["cpu:0"]
PLANNED = "--model=mine.planned_models.Planned"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What the planner has been asked to settle, in turn."""
    found: list[set[str]] = []

    def settle(task: Any, names: Collection[str], *_: Any) -> str:
        found.append(set(names))
        return "planned"

    monkeypatch.setattr(auto_params, "settle_auto", settle)
    return found


def model(**values: Any) -> Any:
    params = model_registry.GetParams(NAME, "Train")
    params.task.pipeline.Set(splits="auto", **values)
    return params


def begun(logdir: Path, **values: Any) -> None:
    """A run that has been trained with these."""
    RunDirectory(logdir, NAME).write_params(model(**values).ToText())


def test_a_new_run_leaves_all_to_the_planner(
    tmp_path: Path, left: list[set[str]]
) -> None:
    for opened in (None, lambda: RunDirectory(tmp_path / "new", NAME)):
        params = model(**AUTO)
        auto = AutoParams(params.task.pipeline, opened)
        assert auto.settle(params, DEVICES) == "planned"
    assert left == [set(AUTO)] * 2


def test_a_run_that_goes_on_keeps_its_number_of_micro_batches(
    tmp_path: Path, left: list[set[str]]
) -> None:
    begun(tmp_path, num_micro_batches=16, schedule="1f1b", recompute="never")
    params = model(**AUTO)
    auto = AutoParams(params.task.pipeline, lambda: RunDirectory(tmp_path, NAME))
    assert params.task.pipeline.num_micro_batches == 16
    assert auto.settle(params, DEVICES) == "planned"
    assert left == [{"schedule", "recompute"}]


def test_where_that_was_all_nothing_is_left(
    tmp_path: Path, left: list[set[str]]
) -> None:
    begun(tmp_path, num_micro_batches=16)
    params = model(num_micro_batches="auto")
    auto = AutoParams(params.task.pipeline, lambda: RunDirectory(tmp_path, NAME))
    assert auto.settle(params, DEVICES) == ""
    assert params.task.pipeline.num_micro_batches == 16
    assert left == []


def test_a_number_that_is_given_is_not_the_runs(
    tmp_path: Path, left: list[set[str]]
) -> None:
    """Which is then refused, as any change of it."""
    begun(tmp_path, num_micro_batches=16)
    params = model(num_micro_batches=8, schedule="auto")
    auto = AutoParams(params.task.pipeline, lambda: RunDirectory(tmp_path, NAME))
    assert params.task.pipeline.num_micro_batches == 8
    auto.settle(params, DEVICES)
    assert left == [{"schedule"}]


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """Where the model is."""
    (tmp_path / "mine").mkdir()
    shutil.copy(Path(__file__).with_name("planned_models.py"), tmp_path / "mine")
    return CommandLine(tmp_path)


def test_a_run_is_planned(tmp_path: Path, command_line: CommandLine) -> None:
    output, _ = command_line.train(
        PLANNED, "--logdir=run", "--devices=2", "--max_steps=2"
    )
    planned = re.match(r"planned: (\S+ x )?K=2 M=(\d+) (\w+), recompute=(\w+)", output)
    assert planned is not None, output
    assert _pipeline(tmp_path / "run") == {
        "num_micro_batches": planned[2],
        "schedule": planned[3],
        "recompute": planned[4],
    }
    assert f"micro-batches: {planned[2]}\n" in output


def test_a_planned_run_goes_on_elsewhere(
    tmp_path: Path, command_line: CommandLine
) -> None:
    """With a number of micro-batches that nobody would choose on one device."""
    wanted = [PLANNED, "--logdir=run"]
    given = "--model_params_override=task.pipeline.num_micro_batches (int) : 4"
    output, _ = command_line.train(*wanted, "--devices=2", "--max_steps=2", given)
    assert output.startswith("planned: K=2 M=4 ")
    output, _ = command_line.train(*wanted, "--devices=1", "--max_steps=4")
    assert "planned: K=1 M=4 " in output
    assert "Resumed from step 2" in output
    assert _pipeline(tmp_path / "run")["num_micro_batches"] == "4"
    assert read_metrics(tmp_path / "run")[-1]["step"] == 4
    # Weights are used as the run has them, and nothing is planned.
    output, _ = command_line.train(*wanted, "--devices=2", "--job=evaler")
    assert "planned" not in output
    assert "step 4: test " in output


def _pipeline(logdir: Path) -> dict[str, str]:
    """What a run's params say of what was left to the planner."""
    entries = entries_by_path((logdir / "params.txt").read_text(encoding="utf-8"))
    return {name: entries[f"task.pipeline.{name}"].text.strip("'") for name in AUTO}
