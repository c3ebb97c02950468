"""The command writes its files, and refuses wrong flags in a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, Outcome

pytestmark = pytest.mark.exhaustive


_TOY = "--model=tests.local_study.toy_study.Toy"


def _run(folder: Path, *flags: str) -> Outcome:
    study = ("-m", "tools.local_study.local_study", "--out=out")
    return CommandLine(folder).run(*study, *flags)


def test_trains_each_in_its_own_process(tmp_path: Path) -> None:
    schemes = ("backpropagation", "greedy")
    flags = [_TOY, f"--schemes={','.join(schemes)}", "--batch_sizes=4", "--steps=2"]
    run = _run(tmp_path, *flags)
    assert run.code == 0, run.errors
    assert run.output.strip() == (tmp_path / "out/report.md").read_text().strip()
    for scheme in schemes:
        assert f"| {scheme}" in run.output
    assert [f.name for f in sorted((tmp_path / "out").glob("*.png"))] == [
        "cost_and_time.png",
        "pareto.png",
        "similarity.png",
        "steps.png",
    ]


def test_an_error_in_a_training_is_a_line(tmp_path: Path) -> None:
    override = "task.pipeline.num_micro_batches : 9"
    run = _run(tmp_path, _TOY, "--batch_sizes=4", f"--model_params_override={override}")
    assert run.code == 1
    *_, line = run.errors.splitlines()
    assert line.startswith("error: ")
    assert "9" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--schemes=greedy,chunky"], "--schemes.*backpropagation,.*'greedy,chunky'"),
        (["--batch_sizes=8,none"], r"--batch_sizes.*\b1\b.*'8,none'"),
        (["--seeds=-1"], r"--seeds.*\b0\b.*'-1'"),
        (["--model=image.digits.Amoeba"], r"\bimage\.digits\.Amoeba\b"),
        (["more"], r"\['more'\]"),
    ],
)
def test_wrong_flags_are_refused(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    run = _run(tmp_path, *flags)
    assert run.code == 1
    *_, line = run.errors.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)
    assert not (tmp_path / "out").exists()
