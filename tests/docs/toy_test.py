"""The README's own model learns, and the same command again changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.docs.pages import README, python_blocks, trainer_commands
from tests.support.cases import exhaustive
from tests.support.command_line import CommandLine, saved_variables

Toy = tuple[CommandLine, Path, list[str], int]


@pytest.fixture(scope="module", params=[50, exhaustive(500)])
def toy(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Toy:
    """Programs in a folder with the model, its run, its flags, and number of steps."""
    folder = tmp_path_factory.mktemp("users")
    _, (path, code) = python_blocks(README)
    (folder / path).parent.mkdir()
    (folder / path).write_text(code)
    command = next(c for c in trainer_commands(README) if "my_models" in c)
    asked = [flag for flag in command.split() if not flag.startswith("--logdir")]
    asked = [*asked, "--logdir=run", f"--max_steps={request.param}"]
    return CommandLine(folder), folder / "run", asked, request.param


@pytest.fixture(scope="module")
def printed(toy: Toy) -> tuple[str, str]:
    """The output and errors that the training prints."""
    command_line, _, asked, _ = toy
    return command_line.train(*asked)


def test_it_learns(toy: Toy, printed: tuple[str, str]) -> None:
    _, logdir, _, steps = toy
    output, errors = printed
    *_, test = read_metrics(logdir)
    assert test["split"] == "test"
    assert test["accuracy"] > (0.9 if steps == 500 else 0.2)
    assert output.splitlines()[0].startswith("parameters: 19,146; stages: 2 (cpu:0")
    assert output.splitlines()[-2].startswith(f"step {test['step']}: test accuracy")
    summary = rf"Trained {steps} steps in \d.* examples/s; newest checkpoint: (.*)"
    found = re.fullmatch(summary, output.splitlines()[-1])
    assert found
    assert (logdir.parent / f"{found[1]}.index").exists()
    # Nothing else is written: no start-up messages, no preparation of data sets.
    assert len(output.splitlines()) == 3
    form = rf"step \d+/{steps}: |[a-z ]+(, .*)? \.\.\. \d+ s$"
    assert all(re.match(form, line) for line in errors.splitlines())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("printed")
def test_the_same_command_again_changes_nothing(toy: Toy) -> None:
    """In the fast suite tests/cli/local_jobs_test.py shows this of another model."""
    command_line, logdir, asked, steps = toy
    before = read_metrics(logdir), saved_variables(logdir, steps)
    output, _ = command_line.train(*asked)
    assert re.search(rf"(?m)^Resumed\b.*\b{steps}\b.*--max_steps", output)
    assert (read_metrics(logdir), saved_variables(logdir, steps)) == before
