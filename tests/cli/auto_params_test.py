"""A run whose pipeline is left to the planner, and resumes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import model_registry
from lingvo_pipe.cli import auto_params
from lingvo_pipe.cli.auto_params import AutoParams, extract_from_run
from lingvo_pipe.cli.use_jobs import RunUse
from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.hyperparams.text_entries import entries_by_path
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.planner.measured.resolve_auto import ResolvedPlan
from lingvo_pipe.training.eval import run_weights
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.support.command_line import CommandLine
from tests.support.errors import fails

NAME = "lm.text.TransformerTiny"
AUTO = {"num_micro_batches": "auto", "schedule": "auto", "recompute": "auto"}
DEVICES = ["cpu:0"]
STEP = PlannedStep(Timeline(()), [])
PLANNED = "--model=mine.planned_models.Planned"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The params that the planner was asked to resolve, in turn."""
    found: list[set[str]] = []

    def resolve(task: Any, names: Collection[str], *_: Any) -> ResolvedPlan:
        found.append(set(names))
        return ResolvedPlan("planned", STEP)

    monkeypatch.setattr(auto_params, "resolve_auto", resolve)
    return found


def model(**values: Any) -> Any:
    params = model_registry.GetParams(NAME, "Train")
    params.task.pipeline.Set(**{"splits": "auto", **values})
    return params


def data() -> Any:
    """The model's input."""
    return model().input.Instantiate()


def begun(logdir: Path, **values: Any) -> None:
    """A run that has been trained with these."""
    RunDirectory(logdir, NAME).write_params(model(**values).ToText())


def test_a_new_run_leaves_all_to_the_planner(
    tmp_path: Path, left: list[set[str]]
) -> None:
    for opened in (None, lambda: RunDirectory(tmp_path / "new", NAME)):
        params = model(**AUTO)
        auto = AutoParams(params.task.pipeline, opened)
        assert auto.planned is None
        assert auto.resolve(params, data(), DEVICES) == "planned"
        assert auto.planned is STEP
    assert left == [set(AUTO)] * 2


@pytest.mark.parametrize(
    ("values", "number", "asked"),
    [
        (AUTO, 16, [{"schedule", "recompute"}]),
        ({"num_micro_batches": "auto"}, 16, []),
        # A number that is given is not the run's. The change is refused later.
        ({"num_micro_batches": 8, "schedule": "auto"}, 8, [{"schedule"}]),
    ],
)
def test_a_run_that_goes_on_keeps_its_number_of_micro_batches(
    tmp_path: Path,
    left: list[set[str]],
    values: dict[str, Any],
    number: int,
    asked: list[set[str]],
) -> None:
    begun(tmp_path, num_micro_batches=16, schedule="1f1b", recompute="never")
    params = model(**values)
    auto = AutoParams(params.task.pipeline, lambda: RunDirectory(tmp_path, NAME))
    assert params.task.pipeline.num_micro_batches == number
    assert auto.resolve(params, data(), DEVICES) == ("planned" if asked else "")
    assert left == asked


BEFORE = {
    "num_micro_batches": 16,
    "schedule": "interleaved",
    "recompute": "never",
    "splits": [1, 2, 4, 6],
    "stages_per_device": 2,
}
TWO = ["cpu:0", "cpu:1"]


@pytest.mark.parametrize("asked", [None, 2, TWO])
@pytest.mark.parametrize("recompute", [None, "never"])
def test_weights_are_used_as_the_run_is_trained(
    tmp_path: Path, asked: Any, recompute: str | None
) -> None:
    before = {**BEFORE, "recompute": recompute}
    begun(tmp_path, **before, devices=TWO)
    pipeline = model(**AUTO).task.pipeline
    extract_from_run(pipeline, lambda: RunDirectory(tmp_path, NAME), asked)
    assert {name: pipeline.Get(name) for name in BEFORE} == before


@pytest.mark.parametrize("name", AUTO)
def test_what_is_given_is_not_the_runs(tmp_path: Path, name: str) -> None:
    begun(tmp_path, **BEFORE, devices=TWO)
    given = {"num_micro_batches": 8, "schedule": "1f1b", "recompute": "always"}
    pipeline = model(**{**AUTO, name: given[name]}).task.pipeline
    extract_from_run(pipeline, lambda: RunDirectory(tmp_path, NAME), None)
    found = {each: pipeline.Get(each) for each in BEFORE}
    assert found == {**BEFORE, name: given[name]}


@pytest.mark.parametrize("asked", [1, 3, ["gpu:0"]])
def test_on_other_devices_stages_are_made_anew(tmp_path: Path, asked: Any) -> None:
    """And so many micro-batches stay, on which bytes depend."""
    begun(tmp_path, **BEFORE, devices=TWO)
    params = model(**AUTO)
    pipeline = params.task.pipeline
    extract_from_run(pipeline, lambda: RunDirectory(tmp_path, NAME), asked)
    assert pipeline.num_micro_batches == 16
    assert (pipeline.splits, pipeline.stages_per_device) == ("auto", 1)
    assert (pipeline.schedule, pipeline.recompute) == ("gpipe", None)


DAMAGED = {
    "num_micro_batches": ["type/evil/Name", "params/evil/Name", "'4'", "True", "[", ""],
    "schedule": ["func/evil/name", "7", "gpipe"],
    "recompute": ["enum/evil/Name.MEMBER", "[type/evil/Name]", "(1, [])"],
    "splits": ["dtype/evil", "{}", "(" * 1000],
    "devices": ["'cpu:0'", "9" * 5000],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in DAMAGED for text in DAMAGED[name]]
)
def test_a_runs_params_import_nothing_and_keep_their_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """A params.txt with `type/module/Name` made the trainer import that module."""
    begun(tmp_path, **BEFORE, devices=TWO)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evil.py").write_text("Name = name = int\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    params_path = tmp_path / "params.txt"
    before = params_path.read_text(encoding="utf-8")
    pattern = rf"(task\.pipeline\.{name}[^:]*: ).*"
    now = re.sub(pattern, lambda match: match[1] + text, before)
    assert now != before
    params_path.write_text(now, encoding="utf-8")
    directory = RunDirectory(tmp_path, NAME)
    with fails(UserDamageError, path=str(params_path)) as info:
        extract_from_run(model(**AUTO).task.pipeline, lambda: directory, None)
    assert info.value.expected.startswith(f"task.pipeline.{name} of type ")
    assert "evil" not in sys.modules


def test_a_param_that_is_missing_in_a_run_is_named(tmp_path: Path) -> None:
    RunDirectory(tmp_path, NAME).write_params("a : 1\n")
    directory = RunDirectory(tmp_path, NAME)
    path, expected = tmp_path / "params.txt", "task.pipeline.num_micro_batches of type "
    with fails(UserDamageError, path=str(path), got="no value") as info:
        AutoParams(model(**AUTO).task.pipeline, lambda: directory)
    assert info.value.expected.startswith(expected)


def test_where_nothing_is_auto_no_run_is_opened() -> None:
    def opened() -> RunDirectory:
        raise AssertionError("opened")

    params = model(num_micro_batches=2)
    text = params.ToText()
    extract_from_run(params.task.pipeline, opened, 2)
    assert params.ToText() == text


def test_a_run_that_is_followed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though only its schedule is auto."""
    logdir = tmp_path / "later"
    clock = SimpleNamespace(
        monotonic=lambda: 0.0, sleep=lambda _: begun(logdir, **BEFORE, devices=TWO)
    )
    monkeypatch.setattr(run_weights, "time", clock)
    pipeline = model(schedule="auto").task.pipeline
    use = RunUse(str(logdir), "Test", follow_seconds=60.0)
    extract_from_run(pipeline, lambda: use.directory(NAME), None)
    assert pipeline.schedule == "interleaved"
    assert pipeline.splits == BEFORE["splits"]


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """Programs in the folder of the model."""
    (tmp_path / "mine").mkdir()
    shutil.copy(Path(__file__).with_name("planned_models.py"), tmp_path / "mine")
    return CommandLine(tmp_path)


@pytest.mark.exhaustive
def test_a_run_is_planned(tmp_path: Path, command_line: CommandLine) -> None:
    flags = [PLANNED, "--logdir=run", "--devices=2"]
    output, _ = command_line.train(*flags, "--max_steps=2")
    planned = re.match(r"planned: (\S+ x )?K=2 M=(\d+) (\w+), recompute=(\w+)", output)
    assert planned is not None, output
    assert _pipeline(tmp_path / "run") == {
        "num_micro_batches": planned[2],
        "schedule": planned[3],
        "recompute": planned[4],
    }
    assert f"micro-batches: {planned[2]}\n" in output


@pytest.mark.exhaustive
def test_a_planned_run_is_evaluated_by_who_was_there_first(
    command_line: CommandLine,
) -> None:
    flags = [PLANNED, "--logdir=run", "--devices=2"]
    follower = command_line.start_trainer(
        *flags, "--job=evaler", "--follow_seconds=120"
    )
    command_line.train(*flags, "--max_steps=2")
    # Of what the planner has settled nothing is taken for a difference.
    output, _ = command_line.train(*flags, "--max_steps=2", "--mode=diff_params")
    assert re.fullmatch(r"Nothing\b.*\n", output)
    output, errors = follower.communicate()
    assert follower.returncode == 0, errors
    assert "step 2: test " in output
    assert "planned" not in output


@pytest.mark.exhaustive
def test_a_planned_run_goes_on_elsewhere(
    tmp_path: Path, command_line: CommandLine
) -> None:
    """Its number of micro-batches is one that nobody would choose on one device."""
    wanted = [PLANNED, "--logdir=run"]
    given = "--model_params_override=task.pipeline.num_micro_batches (int) : 4"
    output, _ = command_line.train(*wanted, "--devices=2", "--max_steps=2", given)
    assert output.startswith("planned: K=2 M=4 ")
    output, _ = command_line.train(*wanted, "--devices=1", "--max_steps=4")
    assert "planned: K=1 M=4 " in output
    assert re.search(r"(?m)^Resumed\b.*\b2\b", output)
    assert _pipeline(tmp_path / "run")["num_micro_batches"] == "4"
    assert read_metrics(tmp_path / "run")[-1]["step"] == 4
    # Weights are used as the run has them, and nothing is planned.
    output, _ = command_line.train(*wanted, "--devices=2", "--job=evaler")
    assert "planned" not in output
    assert "step 4: test " in output


def _pipeline(logdir: Path) -> dict[str, str]:
    """The params of a run's pipeline that the planner has resolved."""
    entries = entries_by_path((logdir / "params.txt").read_text(encoding="utf-8"))
    return {name: entries[f"task.pipeline.{name}"].text.strip("'") for name in AUTO}
