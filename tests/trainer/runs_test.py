"""Runs end in the same bytes on any devices, and go on where they can."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingvo_pipe.training.metrics_log import read_metrics
from tests.trainer.command_line import (
    DIGITS,
    CommandLine,
    saved_variables,
    snapshot,
)

STEPS = 20
OFTEN = "--model_params_override=task.train.save_interval_steps : 5"
# Folder of the run -> its values of --devices and --max_steps, one after another.
RUNS = {
    "one": [("1", STEPS)],
    "two": [("2", STEPS)],
    "four": [("4", STEPS)],
    "two_then_four": [("2", STEPS // 2), ("cpu:3,cpu:1,cpu:2,cpu:0", STEPS)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the finished runs."""
    folder = tmp_path_factory.mktemp("runs")
    command_line = CommandLine(folder)

    def run(name: str) -> None:
        for devices, max_steps in RUNS[name]:
            command_line.train(
                DIGITS,
                f"--logdir={name}",
                f"--devices={devices}",
                f"--max_steps={max_steps}",
                OFTEN,
            )

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(run, RUNS))
    return folder


@pytest.mark.parametrize("name", ["two", "four", "two_then_four"])
def test_the_number_of_devices_changes_no_byte(folder: Path, name: str) -> None:
    one = saved_variables(folder / "one", STEPS)
    assert any("learner" in variable for variable in one)
    assert saved_variables(folder / name, STEPS) == one
    assert read_metrics(folder / name)[-1] == read_metrics(folder / "one")[-1]


def test_training_changes_bytes(folder: Path) -> None:
    before = saved_variables(folder / "one", STEPS - 5)
    after = saved_variables(folder / "one", STEPS)
    assert before.keys() == after.keys()
    same = {name for name in after if before[name] == after[name]}
    assert same == {"input_place", "skipped_steps"}  # Of which there were none.


def test_a_damaged_checkpoint_is_passed_over(folder: Path) -> None:
    shutil.copytree(folder / "one", folder / "damaged")
    newest = folder / "damaged" / "checkpoints" / f"ckpt-{STEPS:08d}"
    (data,) = newest.parent.glob(f"{newest.name}.data-*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    output, _ = CommandLine(folder).train(
        DIGITS, "--logdir=damaged", "--devices=1", f"--max_steps={STEPS}", OFTEN
    )
    assert output.startswith("stages: 1 instead of task.pipeline.splits, 2, as --dev")
    assert f"ckpt-{STEPS:08d} is damaged" in output
    assert f"Resumed from step {STEPS - 5}." in output
    one = saved_variables(folder / "one", STEPS)
    assert saved_variables(folder / "damaged", STEPS) == one
    assert read_metrics(folder / "damaged") == read_metrics(folder / "one")


def test_steps_that_were_trained_are_not_taken_back(folder: Path) -> None:
    before = snapshot(folder / "one")
    trainer = CommandLine(folder).start_trainer(
        DIGITS, "--logdir=one", "--devices=1", f"--max_steps={STEPS - 1}"
    )
    output, errors = trainer.communicate()
    assert trainer.returncode == 1
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert errors.startswith("error: max_steps must not lie before the newest")
    assert f"of step {STEPS} in one; got {STEPS - 1}" in errors
    assert snapshot(folder / "one") == before


def test_the_report_is_written_at_the_end_and_when_asked_for(folder: Path) -> None:
    report = folder / "two" / "report.html"
    name = DIGITS.removeprefix("--model=")
    assert name in report.read_text(encoding="utf-8")
    report.unlink()
    output, errors = CommandLine(folder).train("--mode=report", "--logdir=two")
    assert output == "The report is two/report.html.\n"
    assert errors == ""
    text = report.read_text(encoding="utf-8")
    assert name in text
    assert f"{STEPS} of {STEPS} steps" in text
    assert "<figcaption>confusion" in text


def test_a_model_is_compared_with_a_run(folder: Path) -> None:
    of_run = (
        f"--max_steps={STEPS}",
        "--devices=1",
        "--mode=diff_params",
        "--logdir=one",
    )
    same, _ = CommandLine(folder).train(DIGITS, OFTEN, *of_run)
    assert same == "Nothing differs.\n"
    other, _ = CommandLine(folder).train(DIGITS, *of_run)
    assert other == (
        f"# {DIGITS.replace('--model=', '> ')}    < one\n"
        "> task.train.save_interval_steps : 100\n< task.train.save_interval_steps : 5\n"
    )
