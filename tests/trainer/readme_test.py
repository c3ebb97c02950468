"""What README.md promises holds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from absl import flags

import model_registry
from lingvo_pipe import trainer
from lingvo_pipe.input import prepare
from lingvo_pipe.input.text import train_vocab
from lingvo_pipe.training.metrics_log import read_metrics
from tests.support.command_line import CommandLine, saved_variables
from tools.plan import plan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(TOY,) = re.findall(r"`(my_models/toy\.py)`:\n\n```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    .*(?:trainer|//:trainer --) (--.*)$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def toy(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[CommandLine, Path, list[str]]:
    """Where README's own model is, its run, and the flags that train it."""
    folder = tmp_path_factory.mktemp("users")
    path, code = TOY
    (folder / path).parent.mkdir()
    (folder / path).write_text(code)
    command = next(c.split() for c in COMMANDS if "my_models" in c)
    wanted = [flag for flag in command if not flag.startswith("--logdir")]
    return CommandLine(folder), folder / "run", [*wanted, "--logdir=run"]


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 12


def test_the_model_of_ones_own_learns(
    toy: tuple[CommandLine, Path, list[str]],
) -> None:
    command_line, logdir, wanted = toy
    output, errors = command_line.train(*wanted)
    *_, test = read_metrics(logdir)
    assert test["split"] == "test"
    assert test["accuracy"] > 0.9
    assert output.splitlines()[0].startswith("parameters: 19,466; stages: 2 (cpu:0")
    assert output.splitlines()[-1].startswith(f"step {test['step']}: test accuracy")
    # Nothing else is written: no start-up messages, no preparation of data sets.
    assert len(output.splitlines()) == 2
    assert all(re.match(r"step \d+/500: ", line) for line in errors.splitlines())


def test_the_same_command_again_changes_nothing(
    toy: tuple[CommandLine, Path, list[str]],
) -> None:
    command_line, logdir, wanted = toy
    before = read_metrics(logdir), saved_variables(logdir, 500)
    output, _ = command_line.train(*wanted)
    assert re.search(r"(?m)^Resumed\b.*\b500\b.*--max_steps", output)
    assert (read_metrics(logdir), saved_variables(logdir, 500)) == before


@pytest.mark.parametrize(
    ("name", "module"),
    [("lingvo_pipe_trainer", trainer), ("lingvo_pipe_train_vocab", train_vocab)],
)
def test_a_console_script_is_the_program(name: str, module: Any) -> None:
    """As pip makes it: a file that calls what pyproject.toml names."""
    assert f"`{name}`" in README
    script = f'{name} = "{module.__name__}:{module.run.__name__}"'
    assert script in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_every_flag_that_is_named_exists(capsys: pytest.CaptureFixture[str]) -> None:
    others: dict[str, Callable[[list[str]], Any]] = {
        r"-m lingvo_pipe\.input\.prepare": prepare.main,
        "//tools:train_vocab --": train_vocab.main,
        "//tools:plan --": plan.main,
    }
    ours = README
    for name, main in others.items():
        commands = re.findall(rf"^    .*{name} ((?:.*\\\n)*.*)$", README, re.MULTILINE)
        with pytest.raises(SystemExit):
            main(["--help"])
        known = capsys.readouterr().out
        named = re.findall(r"--\w+", " ".join(commands))
        assert named
        assert [flag for flag in named if flag not in known] == []
        for command in commands:
            ours = ours.replace(command, "")
    trainers = {f.name for f in flags.FLAGS.flags_by_module_dict()[trainer.__name__]}
    rest = set(re.findall(r"--(\w+)=?", ours))
    assert {"model", "logdir", "devices"} <= rest
    assert rest - trainers == set()


def test_every_param_and_model_that_is_named_exists() -> None:
    overrides = set(re.findall(r"--model_params_override='(.*?)'", README))
    models = set(re.findall(r"--model=(\S+)", README)) - {"my_models.toy.Toy"}
    assert overrides
    assert models
    for model, override in itertools.product(models, overrides):
        params = model_registry.GetParams(model, "Train")
        before = params.Copy()
        params.FromText(override, separator=";")
        assert params != before


def test_every_file_that_is_linked_exists() -> None:
    links = re.findall(r"\]\((\w[^):]*)\)", README)
    assert "CONTRIBUTING.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
