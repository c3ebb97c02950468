"""Runs end in the same bytes on any devices, and go on where they can."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserError
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_parts import disturbances, read_parts
from tests.support.cases import exhaustive
from tests.support.command_line import (
    DIGITS,
    SMALL,
    CommandLine,
    messages,
    saved_variables,
    snapshot,
    write_small_model,
)

STEPS, SAVED = 20, 5
REPORTS = "--model_params_override=task.train.report_interval_steps : 1"
OFTEN = f"{REPORTS}; task.train.save_interval_steps : {SAVED}"
# Folder of the run -> its values of --devices and --max_steps, one after another. Those
# that resume are processes of their own, in which Python's hashes have another seed.
RUNS = {
    "one": [("1", STEPS)],
    "two_then_four": [("2", STEPS // 2), ("cpu:3,cpu:1,cpu:2,cpu:0", STEPS)],
}


class Runs(CommandLine):
    """Finished runs of a model below a folder, and what is done with them."""

    def __init__(self, folder: Path, model: str):
        super().__init__(folder)
        write_small_model(folder)
        self.folder, self.model = folder, model
        self.run_named("one")

    def run_named(self, name: str) -> None:
        for place, (devices, max_steps) in enumerate(RUNS[name]):
            start = self.start_fresh_trainer if place else self.start_trainer
            trainer = start(
                self.model,
                f"--logdir={name}",
                f"--devices={devices}",
                f"--max_steps={max_steps}",
                OFTEN,
            )
            _, errors = trainer.communicate()
            assert trainer.returncode == 0, errors


@pytest.fixture(scope="module", params=[SMALL, exhaustive(DIGITS)])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), request.param)


@pytest.mark.exhaustive
def test_the_number_of_devices_changes_no_byte(runs: Runs) -> None:
    """In the fast suite python_runs_test.py shows this."""
    name = "two_then_four"
    runs.run_named(name)
    one = saved_variables(runs.folder / "one", STEPS)
    assert any("learner" in variable for variable in one)
    assert saved_variables(runs.folder / name, STEPS) == one
    assert read_metrics(runs.folder / name)[-1] == read_metrics(runs.folder / "one")[-1]


def test_training_changes_bytes(runs: Runs) -> None:
    before = saved_variables(runs.folder / "one", STEPS - SAVED)
    after = saved_variables(runs.folder / "one", STEPS)
    assert before.keys() == after.keys()
    same = {name for name in after if before[name] == after[name]}
    assert same == {"input_place", "skipped_steps"}  # Of which there were none.


def test_steps_that_were_trained_are_not_taken_back(runs: Runs) -> None:
    before = snapshot(runs.folder / "one")
    trainer = runs.start_trainer(
        runs.model, "--logdir=one", "--devices=1", f"--max_steps={STEPS - 1}"
    )
    output, errors = trainer.communicate()
    assert trainer.returncode == 1
    assert output == ""
    (line,) = messages(errors)
    assert line.startswith("error: task.train.max_steps: ")
    assert snapshot(runs.folder / "one") == before


def test_the_report_is_written_at_the_end_and_when_asked_for(runs: Runs) -> None:
    report = runs.folder / "one" / "report.html"
    name = runs.model.removeprefix("--model=")
    assert name in report.read_text(encoding="utf-8")
    report.unlink()
    output, errors = runs.train("--mode=report", "--logdir=one")
    assert re.fullmatch(r".*\bone/report\.html\b.*\n", output)
    assert messages(errors) == []
    text = report.read_text(encoding="utf-8")
    assert name in text
    assert f"{STEPS} of {STEPS} steps" in text


def test_a_model_is_compared_with_a_run(runs: Runs) -> None:
    of_run = (
        f"--max_steps={STEPS}",
        "--devices=1",
        "--mode=diff_params",
        "--logdir=one",
    )
    same, _ = runs.train(runs.model, OFTEN, *of_run)
    assert re.fullmatch(r"Nothing\b.*\n", same)
    other, _ = runs.train(runs.model, REPORTS, *of_run)
    assert other == (
        f"# {runs.model.replace('--model=', '> ')}    < one\n"
        "> task.train.save_interval_steps : 100\n< task.train.save_interval_steps : 5\n"
    )


# Runs on two devices, of which the second fails in the eighth step (failing_device.py).
FAILING = (
    "--model=mine.failing_device.Failing",
    f"--max_steps={STEPS}",
    "--devices=2",
    OFTEN,
    "--elastic",
)


@pytest.fixture
def faulty(runs: Runs) -> Runs:
    """Returns the runs, beside which the next one has a device that fails."""
    shutil.copy(Path(__file__).with_name("failing_device.py"), runs.folder / "mine")
    (runs.folder / "faulty").touch()
    return runs


of_the_small_model = pytest.mark.parametrize("runs", [SMALL], indirect=True)


@of_the_small_model
def test_a_run_goes_on_without_a_failed_device(faulty: Runs) -> None:
    output, _ = faulty.train(*FAILING, "--logdir=elastic")
    assert re.search(r"^cpu:1 failed: .*CUDA_ERROR_ILLEGAL_ADDRESS", output, re.M)
    assert "\nelastic: 1 of 2 devices; left out: cpu:1\n" in output
    assert "; stages: 1 (cpu:0); " in output
    assert f"\nResumed from step {SAVED}." in output
    elastic, whole = (faulty.folder / name for name in ("elastic", "one"))
    (line,) = disturbances(read_parts(elastic / "parts.json"))
    assert re.search(rf"^after step {SAVED}: 0:.* lost\. cpu:1 failed: ", line)
    assert saved_variables(elastic, STEPS) == saved_variables(whole, STEPS)
    metrics = [(run / "metrics.jsonl").read_text() for run in (elastic, whole)]
    assert metrics[0] == metrics[1]


@pytest.mark.exhaustive
@of_the_small_model
def test_a_run_with_too_few_devices_ends_with_their_error(faulty: Runs) -> None:
    trainer = faulty.start_trainer(*FAILING, "--min_devices=2", "--logdir=few")
    output, errors = trainer.communicate()
    assert trainer.returncode == UserError.exit_code
    assert re.search(r"^cpu:1 failed: ", output, re.M)
    assert re.search(r"^1 of 2 devices .*--min_devices is 2\.$", output, re.M)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in errors
