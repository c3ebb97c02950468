"""The pages' commands and tables about runs that start from other weights."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.warm_start.init_names import rules_by_path
from tests.docs.pages import page, trainer_commands
from tests.support.command_line import CommandLine, saved_variables

_PATHS = ["task/pipeline/head/dense/b", "task/pipeline/head/dense/w"]
_CHEAP = ("--devices=1", "--max_steps=1")


def _commands(name: str, folder: Path) -> list[list[str]]:
    """Returns the flags of a page's commands, with its runs in `folder`."""
    text = page(name).replace("/tmp/", f"{folder}/")
    return [shlex.split(command) for command in trainer_commands(text)]


def _of_digits(folder: Path) -> list[list[str]]:
    """Returns the flags of the commands for digits after other digits."""
    images = [x for x in _commands("images", folder) if "image.digits" in x[0]]
    return [x for x in images if "my_digits" not in str(x)]


def test_the_table_of_names_is_right() -> None:
    rows = re.findall(r"^\| `'(.*)'` \| (.*) \|$", page("runs"), re.MULTILINE)
    assert len(rows) == 4
    for mapping, name in rows:
        names = rules_by_path("a", mapping, _PATHS).names
        assert names.get(_PATHS[1], "nothing") == name.strip("`")


@pytest.mark.exhaustive
def test_digits_are_learned_after_other_digits(tmp_path: Path) -> None:
    """A layer of another shape keeps its values, and equal models evaluate equally."""
    program = CommandLine(tmp_path)
    low, high, every = _of_digits(tmp_path)
    tuned, new = (x for x in _commands("runs", tmp_path) if "init_from" in str(x))
    program.train(*low, *_CHEAP)
    for command in (high, every):
        program.train(*command, *_CHEAP)
        kept = _kept(tmp_path / command[1].rpartition("/")[2])
        assert {path.removeprefix("task/pipeline/") for path in kept} == {
            f"{layer}/dense/{name}"
            for layer in ("head", "auxiliary_head/classifier")
            for name in "bw"
        }
    (tmp_path / "all").rename(tmp_path / "digits")
    for command in (tuned, new):
        program.train(*command, *_CHEAP)
    assert _kept(tmp_path / "tuned") == []
    assert len(_kept(tmp_path / "new")) == 4
    # On two devices, before the first step.
    logdir, checkpoint = f"--logdir={tmp_path}/tuned", "--checkpoint=ckpt-00000000"
    program.train(tuned[0], logdir, checkpoint, "--job=evaler", "--devices=2")
    (step_0,) = read_metrics(tmp_path / "tuned" / "evaler")
    assert {**step_0, "step": 1} == read_metrics(tmp_path / "digits")[-1]
    averages = saved_variables(tmp_path / "digits", 1)
    start = saved_variables(tmp_path / "tuned", 0)
    for path in (name.removesuffix("/ema") for name in averages if "/ema" in name):
        assert start[path] == averages[f"{path}/ema"]


@pytest.mark.exhaustive
def test_few_steps_are_enough_after_other_digits(tmp_path: Path) -> None:
    program, (low, high, _) = CommandLine(tmp_path), _of_digits(tmp_path)
    program.train(*low, "--devices=1")
    program.train(*high, "--devices=1", "--max_steps=25")
    *_, test = read_metrics(tmp_path / "high")
    assert test["step"] == 25
    assert test["accuracy"] > 0.8


def _kept(logdir: Path) -> list[str]:
    """Returns the paths of the variables that keep their initial values."""
    text = (logdir / "initial_weights.txt").read_text()
    section = re.split(r"^\w.*$", text, flags=re.MULTILINE)[2]
    return re.findall(r"^    (\S+)", section, re.MULTILINE)
