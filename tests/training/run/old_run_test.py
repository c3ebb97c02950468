"""A run of an earlier version resumes as if it were a run of this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import model_registry
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.support.small_model import Small
from tests.training.toy_run import resumed_steps, saved_bytes

# Six steps of `Small`, made before modules moved to rooms with names, and before some
# params got the field's names.
OLD_RUN = Path(__file__).parent / "old_run"
NAME = "mine.small_model.Small"
STEPS, MORE_STEPS = 6, 9


def _params(dataset: str) -> Any:
    """Returns the params of `Small` with more steps, as this version has them."""
    model = model_registry.GetParams(model_registry.GetName(Small), dataset)
    model.task.train.Set(max_steps=MORE_STEPS, save_interval_steps=3)
    model.task.train.report_interval_steps = 1
    return model


def _resumed(
    folder: Path, name: str, present: str = ""
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Returns variables and metrics of a resumed copy, with other params if given."""
    copy = shutil.copytree(OLD_RUN, folder / name)  # Bazel's files are links.
    if present:
        first_line = (copy / "params.txt").read_text().splitlines()[0]
        (copy / "params.txt").write_text(f"{first_line}\n{present}")
    model, test_model = _params("Train"), _params("Test")
    logged: list[str] = []
    train(
        model.task.Instantiate(),
        model.input.Instantiate(),
        test_model.input.Instantiate(),
        RunDirectory(copy, NAME),
        model.ToText(),
        logged.append,
    )
    assert resumed_steps(logged) == [STEPS]
    return saved_bytes(copy, MORE_STEPS), read_metrics(copy)


def test_it_resumes(tmp_path: Path) -> None:
    variables, metrics = _resumed(tmp_path, "old")
    original = shutil.copytree(OLD_RUN, tmp_path / "original")
    before, records = saved_bytes(original, STEPS), read_metrics(original)
    assert variables.keys() == before.keys()
    assert len([name for name in before if variables[name] != before[name]]) > 5
    assert metrics[: len(records)] == records
    assert metrics[-1]["step"] == MORE_STEPS


@pytest.mark.exhaustive
def test_it_resumes_in_the_same_bytes(tmp_path: Path) -> None:
    present = _params("Train").ToText()
    assert _resumed(tmp_path, "old") == _resumed(tmp_path, "rewritten", present)
