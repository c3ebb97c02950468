"""Profiling a run writes files and one line, and changes nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.profiling.step_profiler import StepProfiler
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.base_task import BaseTask
from tests.support.cases import exhaustive

BATCH, STEPS = 4, 6


class Input:
    """An input with one batch, repeated."""

    params = Params()
    params.Define("batch_size", BATCH, "")

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensors(
            NestedMap(
                image=tf.random.stateless_normal([BATCH, 3], seed=[1, 2]),
                label=tf.range(BATCH) % 2,
                weight=tf.ones([BATCH]),
            )
        )
        return data.repeat(STEPS - start_step)

    def EvalBatches(self) -> tf.data.Dataset:
        return self.TrainBatches(STEPS - 1)


def _task(max_steps: int) -> BaseTask:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        cell_tpl=[
            FCLayer.Params().Set(input_dim=3, output_dim=5, activation="RELU"),
            FCLayer.Params().Set(input_dim=5, output_dim=2),
        ],
        splits=2,
        num_micro_batches=2,
    )
    p.train.Set(learning_rate=0.1, max_steps=max_steps, report_interval_steps=1)
    return p.Instantiate()


def _run(
    logdir: Path, profile_step: int | None, max_steps: int = STEPS
) -> tuple[dict[str, bytes], list[str]]:
    """Trains; returns the variables' bytes and the logged lines."""
    task, lines = _task(max_steps), list[str]()
    directory = RunDirectory(logdir, "toy.Toy")
    train(
        task,
        Input(),
        Input(),
        directory,
        "task.name : 'task'\n",
        lines.append,
        profile_step=profile_step,
    )
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


def test_profiling_changes_no_byte(folder: Path, plain: Any, profiled: Any) -> None:
    assert profiled[0] == plain[0]
    metrics = [folder / name / "metrics.jsonl" for name in ("plain", "profiled")]
    assert metrics[0].read_text() == metrics[1].read_text()
    assert not (folder / "plain" / "profile").exists()


def test_one_line_has_the_result_and_the_path(
    folder: Path, plain: Any, profiled: Any
) -> None:
    files = re.escape(str(folder / "profiled" / "profile" / "step-4.*"))
    form = rf"step 4: .* predicted .* bubble .*; see {files}"
    assert [bool(re.fullmatch(form, line)) for line in profiled[1]].count(True) == 1
    assert len(profiled[1]) == len(plain[1]) + 1


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
    (events,) = (folder / "profiled" / "train").iterdir()
    pages = {
        value.tag: (event.step, tf.make_ndarray(value.tensor))
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag.startswith("pipeline/")
    }
    assert {step for step, _ in pages.values()} == {4}
    image = (folder / "profiled" / "profile" / "step-4.png").read_bytes()
    assert pages["pipeline/picture"][1][2] == image
    assert b"idle: overhead" in pages["pipeline/text"][1].item()


@pytest.mark.parametrize("step", [1, 2, STEPS + 1])
def test_steps_that_cannot_be_profiled_are_refused(tmp_path: Path, step: int) -> None:
    expected = rf"\b3\b.*max_steps.*\b{STEPS}\b.*\b{step}\b.*--profile_step"
    with pytest.raises(ValueError, match=expected):
        _run(tmp_path, step)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "profiled"), [exhaustive(3, []), (4, []), (5, [5])])
def test_a_resumed_run_profiles_only_later_steps(
    tmp_path: Path, step: int, profiled: list[int]
) -> None:
    """And resumes in any case, since a killed run is restarted by the same command."""
    _run(tmp_path, None, max_steps=2)
    _, lines = _run(tmp_path, step)
    notes = [line for line in lines if re.match(rf"Step {step}\b.*\b2\b.*\b5\.$", line)]
    assert len(notes) == (not profiled)
    tables = tmp_path.glob("profile/*.txt")
    assert [path.name for path in tables] == [f"step-{n}.txt" for n in profiled]


def test_setting_the_clock_back_does_not_end_the_run(tmp_path: Path) -> None:
    task, lines = _task(STEPS), list[str]()
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
