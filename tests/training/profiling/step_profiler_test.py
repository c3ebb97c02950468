"""Profiling a run writes files and one line, and changes nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lingvo_pipe.pipeline.schedules.by_rule import local
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.support.errors import fails
from tests.training.toy_run import Input, batch, events, make_task, run

STEPS = 6
DATA = Input(*map(batch, range(STEPS)))


def _run(
    logdir: Path, profile_step: int | None, max_steps: int = STEPS
) -> tuple[dict[str, bytes], list[str]]:
    """Trains; returns the variables' bytes and the logged lines."""
    task, lines = (
        make_task(2, max_steps=max_steps, report_interval_steps=1),
        list[str](),
    )
    run(task, DATA, logdir, lines.append, profile_step)
    variables = task.VariablePaths()
    return {path: v.numpy().tobytes() for path, v in variables.items()}, lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    return _run(folder / "plain", None)


@pytest.fixture(scope="module")
def profiled(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    return _run(folder / "profiled", 4)


@pytest.mark.exhaustive
def test_profiling_changes_no_byte(folder: Path, plain: Any, profiled: Any) -> None:
    assert profiled[0] == plain[0]
    assert len(profiled[1]) == len(plain[1]) + 1
    metrics = [folder / name / "metrics.jsonl" for name in ("plain", "profiled")]
    assert metrics[0].read_text() == metrics[1].read_text()
    assert not (folder / "plain" / "profile").exists()


def test_one_line_has_the_result_and_the_path(folder: Path, profiled: Any) -> None:
    files = re.escape(str(folder / "profiled" / "profile" / "step-4.*"))
    form = rf"step 4: .* predicted .* bubble .*; see {files}"
    (line,) = (line for line in profiled[1] if re.search(r"\bstep.4\b", line))
    assert re.fullmatch(form, line)


def test_the_run_directory_holds_the_profile(folder: Path, profiled: Any) -> None:
    written = {path.name for path in (folder / "profiled" / "profile").iterdir()}
    assert written == {"step-4.png", "step-4.txt", "step-4.trace.json"}
    text = (folder / "profiled" / "profile" / "step-4.txt").read_text()
    # The first step warms up.
    assert re.search(r"\bmedian\b.*\b2 calls\b", text)
    assert re.search("Device 1 .*device:CPU:1", text)
    assert "idle: communication" in text
    assert "GPU" not in text


def test_tensorboard_has_the_profile(folder: Path, profiled: Any) -> None:
    logdir = folder / "profiled"
    ((step, tag, picture),) = events(logdir / "train", "images")
    assert (step, tag) == (4, "pipeline/picture")
    assert picture[2] == (logdir / "profile" / "step-4.png").read_bytes()
    ((step, tag, text),) = events(logdir / "train", "text")
    assert (step, tag) == (4, "pipeline/text")
    assert b"idle: overhead" in text.item()


@pytest.mark.parametrize("step", [2, STEPS + 1])
def test_steps_that_cannot_be_profiled_are_refused(tmp_path: Path, step: int) -> None:
    with fails(path="--profile_step", got=step):
        _run(tmp_path, step)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def begun(folder: Path) -> Path:
    _run(folder / "begun", None, max_steps=2)
    return folder / "begun"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("step", "profiled"), [(3, []), (4, []), (5, [5])])
def test_a_resumed_run_profiles_only_later_steps(
    begun: Path, tmp_path: Path, step: int, profiled: list[int]
) -> None:
    """And resumes in any case, since a killed run is restarted by the same command."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    _, lines = _run(tmp_path, step)
    notes = [line for line in lines if re.match(rf"Step {step}\b.*\b2\b.*\b5\.$", line)]
    assert len(notes) == (not profiled)
    tables = tmp_path.glob("profile/*.txt")
    assert [path.name for path in tables] == [f"step-{n}.txt" for n in profiled]


def test_setting_the_clock_back_does_not_end_the_run(tmp_path: Path) -> None:
    task, lines = make_task(), list[str]()
    directory = RunDirectory(tmp_path, "toy.Toy")
    with MetricsLog(tmp_path) as log:
        profiler = StepProfiler(task.pipeline, 3, 0, directory, log, lines.append)
        backwards = [
            np.array([[-float(i)] * 3 for i, _ in enumerate(column)])
            for column in task.pipeline.schedule.columns
        ]
        ran = mock.Mock(
            schedule=task.pipeline.schedule, Times=lambda: backwards, State=dict
        )
        for step in range(1, STEPS):
            profiler.after_step(step, ran)
    (line,) = lines
    assert re.match(r"Step 3\b.*\bclock\b", line)
    assert not directory.profile_path.exists()


def test_stages_that_run_ahead_are_noted(tmp_path: Path) -> None:
    """Stage 0 is a block of its own, and faster than stage 1."""
    schedule = several_steps(local(2, 2, [0]), 6)
    stages = [StageCosts(forward=s, backward=s, update=s) for s in (1.0, 9.0)]
    columns: list[list[tuple[float, ...]]] = [[], []]
    for device, (_, *times) in simulate(schedule, Costs(tuple(stages))).ops():
        columns[device].append(tuple(times))
    ran = mock.Mock(schedule=schedule, Times=lambda: list(map(np.array, columns)))
    directory = RunDirectory(tmp_path, "toy.Toy")
    with MetricsLog(tmp_path) as log:
        pipeline = make_task(2).pipeline
        profiler = StepProfiler(pipeline, 18, 0, directory, log, lambda line: None)
        for step in (6, 12, 18):
            profiler.after_step(step, ran)
    text = (directory.profile_path / "step-18.txt").read_text()
    assert re.search(rf"Stage 0\b.*\b{MAX_STEPS_AHEAD} steps.*\bstage 1\b", text)
