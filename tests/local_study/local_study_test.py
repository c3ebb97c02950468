"""The command: what it writes, and what it refuses in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tools.local_study

ROOT = Path(tools.local_study.__file__).parents[2]


_TOY = "--model=tests.local_study.toy_study.Toy"


def _run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("BUILD_WORKING_DIRECTORY", None)
    return subprocess.run(
        [sys.executable, "-m", "tools.local_study.local_study", "--out=out", *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_trains_each_in_its_own_process(tmp_path: Path) -> None:
    schemes = ("backpropagation", "greedy")
    wanted = [_TOY, f"--schemes={','.join(schemes)}", "--batch_sizes=4", "--steps=2"]
    run = _run(tmp_path, *wanted)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == (tmp_path / "out/report.md").read_text().strip()
    for scheme in schemes:
        assert f"| {scheme}" in run.stdout
    assert [f.name for f in sorted((tmp_path / "out").glob("*.png"))] == [
        "cost_and_time.png",
        "pareto.png",
        "similarity.png",
        "steps.png",
    ]


def test_what_goes_wrong_in_a_training_is_a_line(tmp_path: Path) -> None:
    override = "task.pipeline.num_micro_batches : 9"
    run = _run(tmp_path, _TOY, "--batch_sizes=4", f"--model_params_override={override}")
    assert run.returncode == 1
    *_, line = run.stderr.splitlines()
    assert line.startswith("error: ")
    assert "9" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--schemes=greedy,chunky"], "--schemes must be some of backpropagation,"),
        (["--batch_sizes=8,none"], "--batch_sizes must be whole numbers from 1"),
        (["--seeds=-1"], "--seeds must be whole numbers from 0"),
        (["--model=image.digits.Amoeba"], "image.digits.Amoeba"),
        (["more"], "Arguments must be flags"),
    ],
)
def test_refuses(flags: list[str], message: str, tmp_path: Path) -> None:
    run = _run(tmp_path, *flags)
    assert run.returncode == 1
    *_, line = run.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "out").exists()
