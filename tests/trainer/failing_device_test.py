"""A run goes on without a device of this machine that has failed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserError
from lingvo_pipe.training.run.run_parts import disturbances, read_parts
from tests.support.command_line import CommandLine, saved_variables, write_small_model

STEPS, SAVED = 10, 5
FLAGS = (
    "--model=mine.failing_device.Failing",
    f"--max_steps={STEPS}",
    "--devices=2",
    f"--model_params_override=task.train.save_interval_steps : {SAVED}; "
    "task.train.report_interval_steps : 1",
)


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    write_small_model(tmp_path)
    shutil.copy(Path(__file__).with_name("failing_device.py"), tmp_path / "mine")
    (tmp_path / "faulty").touch()
    return CommandLine(tmp_path)


def test_a_run_goes_on_without_a_failed_device(
    command_line: CommandLine, tmp_path: Path
) -> None:
    output, _ = command_line.train(*FLAGS, "--elastic", "--logdir=elastic")
    assert re.search(r"^cpu:1 failed: .*CUDA_ERROR_ILLEGAL_ADDRESS", output, re.M)
    assert "\nelastic: 1 of 2 devices; left out: cpu:1\n" in output
    assert "; stages: 1 (cpu:0); " in output
    assert f"\nResumed from step {SAVED}." in output
    (line,) = disturbances(read_parts(tmp_path / "elastic" / "parts.json"))
    assert re.search(rf"^after step {SAVED}: 0:.* lost\. cpu:1 failed: ", line)
    command_line.train(*FLAGS, "--logdir=whole")
    runs = tmp_path / "elastic", tmp_path / "whole"
    elastic, whole = (saved_variables(run, STEPS) for run in runs)
    assert elastic == whole
    elastic_text, whole_text = ((run / "metrics.jsonl").read_text() for run in runs)
    assert elastic_text == whole_text


@pytest.mark.exhaustive
def test_a_run_with_too_few_devices_ends_with_their_error(
    command_line: CommandLine,
) -> None:
    code, output, errors = command_line.run(
        *("-m", "lingvo_pipe.trainer", *FLAGS),
        *("--elastic", "--min_devices=2", "--logdir=few"),
    )
    assert code == UserError.exit_code
    assert re.search(r"^cpu:1 failed: ", output, re.M)
    assert re.search(r"^1 of 2 devices .*--min_devices is 2\.$", output, re.M)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in errors
