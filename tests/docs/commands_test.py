"""Flags, params, models and files that the pages name exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from absl import flags

import model_registry
from lingvo_pipe import trainer
from lingvo_pipe.cli import flags as trainer_flags
from lingvo_pipe.input import prepare
from lingvo_pipe.input.text import train_vocab
from lingvo_pipe.tools import commands
from lingvo_pipe.tools.plan import plan
from tests.docs.pages import (
    PACKAGES,
    PAGES,
    README,
    ROOT,
    SOURCE_ROOT,
    anchors,
    relative_links,
    trainer_commands,
)

# What a command is called by, and the program.
OTHERS: dict[str, Callable[[list[str]], Any]] = {
    "lingvo_pipe prepare": prepare.main,
    "lingvo_pipe vocab": train_vocab.main,
    "lingvo_pipe plan": plan.main,
}
COMMANDS = [command for text in PAGES.values() for command in trainer_commands(text)]
each_page = pytest.mark.parametrize("name", PAGES)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("lingvo_pipe", commands),
        ("lingvo_pipe_trainer", trainer),
    ],
)
def test_a_console_script_is_the_program(name: str, module: Any) -> None:
    """pip makes a file that calls the function that pyproject.toml names."""
    script = f'{name} = "{module.__name__}:{module.run.__name__}"'
    assert script in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OTHERS)
def test_flags_of_other_programs_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        OTHERS[name](["--help"])
    known = capsys.readouterr().out
    pattern = rf"^    .*{name} ((?:.*\\\n)*.*)$"
    commands = re.findall(pattern, "\n".join(PAGES.values()), re.MULTILINE)
    named = set(re.findall(r"--\w+", " ".join(commands)))
    assert named
    assert [flag for flag in named if flag not in known] == []


def test_flags_of_the_trainer_exist() -> None:
    known = flags.FLAGS.flags_by_module_dict()[trainer_flags.__name__]
    named = set(re.findall(r"--(\w+)", " ".join(COMMANDS)))
    named |= set(re.findall(r"`--(\w+)", README))
    assert {"model", "logdir", "devices"} <= named
    assert named - {flag.name for flag in known} == set()


def test_params_and_models_exist() -> None:
    text = "\n".join(PAGES.values())
    overrides = set(re.findall(r"--model_params_override='(.*?)'", text))
    overrides = {each for each in overrides if "..." not in each}
    models = set(re.findall(r"--model=(\w+\.[\w.]+)", " ".join(COMMANDS)))
    models = {name for name in models if not name.startswith("my_models.")}
    assert len(overrides) > 5
    assert len(models) > 5
    for name in models:
        before = model_registry.GetParams(name, "Train")
        for override in overrides:
            params = before.Copy()
            params.FromText(override, separator=";")
            assert params != before


@each_page
def test_links_hold(name: str) -> None:
    """Anchors exist, and links of the wheel's pages stay within the wheel."""
    for path, anchor in relative_links(PAGES[name]):
        target = ((SOURCE_ROOT / name).parent / path).resolve() if path else ROOT / name
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), anchor
        if path and name.startswith("lingvo_pipe/"):
            folder = target.relative_to(SOURCE_ROOT).parts[0]
            assert folder in PACKAGES, path


def test_the_readme_links_every_page() -> None:
    links = set(re.findall(r"\]\((lingvo_pipe/docs/\w+\.md)\)", README))
    assert links == {name for name in PAGES if name.startswith("lingvo_pipe/docs/")}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200
