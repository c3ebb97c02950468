"""A run of an earlier version resumes as if it were a run of this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.command_line import (
    SMALL,
    CommandLine,
    saved_variables,
    write_small_model,
)

# Six steps of `Small`, made before modules moved to rooms with names, and before some
# params got the field's names.
OLD_RUN = Path(__file__).parent / "old_run"
STEPS, MORE_STEPS = 6, 9


FLAGS = (
    *(SMALL, "--data_dir=.", f"--max_steps={MORE_STEPS}"),
    "--model_params_override=task.train.report_interval_steps : 1; "
    "task.train.save_interval_steps : 3; task.eval.images : false",
)


def _resumed(
    folder: Path, name: str, present: str = ""
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Returns variables and metrics of a resumed copy, with other params if given."""
    copy = shutil.copytree(OLD_RUN, folder / name)  # Bazel's files are links.
    if present:
        first_line = (copy / "params.txt").read_text().splitlines()[0]
        (copy / "params.txt").write_text(f"{first_line}\n{present}\n")
    output, _ = CommandLine(folder).train(*FLAGS, f"--logdir={name}")
    assert f"Resumed from step {STEPS}" in output
    return saved_variables(copy, MORE_STEPS), read_metrics(copy)


def test_it_resumes(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    variables, metrics = _resumed(tmp_path, "old")
    original = shutil.copytree(OLD_RUN, tmp_path / "original")
    before, records = saved_variables(original, STEPS), read_metrics(original)
    assert variables.keys() == before.keys()
    assert len([name for name in before if variables[name] != before[name]]) > 5
    assert metrics[: len(records)] == records
    assert metrics[-1]["step"] == MORE_STEPS


@pytest.mark.exhaustive
def test_it_resumes_in_the_same_bytes(tmp_path: Path) -> None:
    write_small_model(tmp_path)
    present, _ = CommandLine(tmp_path).train(*FLAGS, "--mode=inspect_params")
    present = present.partition("\n# ")[0]
    assert _resumed(tmp_path, "old") == _resumed(tmp_path, "rewritten", present)
