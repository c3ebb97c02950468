"""The trainer prints models, params and differences without training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import model_registry
from tests.support.command_line import DIGITS, CommandLine, messages


def test_a_model_is_described_in_the_stages_of_the_devices(tmp_path: Path) -> None:
    output, errors = CommandLine(tmp_path).train(
        DIGITS, "--mode=inspect_model", "--devices=3"
    )
    assert messages(errors) == []
    note, *lines = output.splitlines()
    assert re.match(r"stages: 3\b.*\.splits, 2,.*--devices.*\b3 devices\b", note)
    cells = model_registry.GetParams(DIGITS[len("--model=") :], "Train").task.pipeline
    rows = [line.split()[:3] for line in lines if re.match(r"\d", line)]
    assert [name for _, name, _ in rows] == [p.name for p in cells.cell_tpl]
    assert [stage for stage, _, _ in rows] == list("00011122")


@pytest.mark.exhaustive
def test_automatic_splits_balance_the_flops(tmp_path: Path) -> None:
    """Even numbers of layers leave the last stage with hardly any."""
    override = "--model_params_override=task.pipeline.splits (str) : auto"
    output, errors = CommandLine(tmp_path).train(
        DIGITS, "--mode=inspect_model", "--devices=2", override
    )
    assert messages(errors) == []
    shares = [float(x) for x in re.findall(r"([\d.]+)% of the flops", output)]
    assert len(shares) == 2
    assert max(shares) < 55


def test_lists_models_beside_modules_that_do_not_import(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "one.py").write_text(
        "import model_registry\n"
        "from lingvo_pipe.training.task.single_task_model_params import (\n"
        "    SingleTaskModelParams,\n"
        ")\n\n\n"
        "@model_registry.RegisterSingleTaskModel\n"
        "class Model(SingleTaskModelParams):\n"
        "    pass\n"
    )
    (tmp_path / "mine" / "two.py").write_text("import not_installed")
    output, errors = CommandLine(tmp_path).train(
        "--list_models", "--model_imports=mine"
    )
    assert re.search(r"(?m)^warning: mine\.two\b.*'not_installed'", errors)
    names = output.splitlines()
    assert names == sorted(names)
    assert {"image.digits.AmoebaNetDigits", "mine.one.Model"} <= set(names)


def test_all_params_are_printed(tmp_path: Path) -> None:
    output, _ = CommandLine(tmp_path).train(
        DIGITS,
        "--mode=inspect_params",
        "--max_steps=7",
        "--model_params_override=task.train.learning_rate : 0.5",
    )
    train, test = output.split("\n# Test\n")
    name = DIGITS[len("--model=") :]
    wanted = model_registry.GetParams(name, "Train")
    found = wanted.Copy()
    found.FromText(train)
    wanted.task.train.Set(max_steps=7, learning_rate=0.5)
    assert found == wanted
    of_test = model_registry.GetParams(name, "Test")
    wanted_test = of_test.Copy()
    of_test.FromText(test)
    assert of_test == wanted_test
    assert all(line.startswith("input") for line in test.splitlines())


def test_models_are_compared(tmp_path: Path) -> None:
    other = "image.digits.AmoebaNetDigits0To4"
    output, _ = CommandLine(tmp_path).train(
        DIGITS, "--mode=diff_params", f"--other_model={other}"
    )
    ours = model_registry.GetParams(DIGITS[len("--model=") :], "Train")
    theirs = model_registry.GetParams(other, "Train")
    legend, *lines = output.splitlines()
    assert any("input.labels" in line for line in lines)
    assert legend == f"# > {DIGITS.removeprefix('--model=')}    < {other}"
    own, others = ({*p.ToText().splitlines()} for p in (ours, theirs))
    expected = [f"> {x}" for x in own - others] + [f"< {x}" for x in others - own]
    assert sorted(lines) == sorted(expected)
