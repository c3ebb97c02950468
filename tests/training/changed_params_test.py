"""A run goes on with the model it was begun with, unless told otherwise."""

from __future__ import annotations

import re

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.changed_params import check_changes


def params() -> Params:
    """Some of a model's params."""
    train = Params()
    train.Define("max_steps", 10, "")
    train.Define("learning_rate", 0.1, "")
    train.Define("note", "a : b\nc : d", "")
    optimizer = Params()
    optimizer.Define("name", "SGD", "")
    optimizer.Define("momentum", 0.9, "")
    train.Define("optimizer", optimizer, "")
    pipeline = Params()
    pipeline.Define("splits", 4, "")
    pipeline.Define("schedule", "gpipe", "")
    cell = Params()
    cell.Define("dim", 8, "")
    pipeline.Define("cell_tpl", [cell, cell.Copy()], "")
    task, model = Params(), Params()
    task.Define("train", train, "")
    task.Define("pipeline", pipeline, "")
    model.Define("task", task, "")
    return model


def changed(override: str) -> str:
    p = params()
    p.FromText(override, separator=";")
    return p.ToText()


BEFORE = params().ToText()


@pytest.mark.parametrize(
    "override",
    [
        "",
        "task.pipeline.splits (list) : [1, 2]",
        "task.pipeline.schedule : '1f1b'; task.train.max_steps : 900",
    ],
)
def test_where_and_how_long_it_runs_may_change(override: str) -> None:
    check_changes(BEFORE, changed(override), [])


def test_all_other_changes_are_told_with_what_accepts_them() -> None:
    now = changed(
        "task.train.learning_rate : 0.2; task.train.optimizer.momentum : 0.0; "
        "task.pipeline.cell_tpl[1].dim : 9; task.pipeline.splits : 1"
    )
    with pytest.raises(ValueError, match="begun with") as caught:
        check_changes(BEFORE, now, [])
    *lines, advice = str(caught.value).splitlines()
    assert lines[1:] == [
        "  task.pipeline.cell_tpl[1].dim : 8 -> 9",
        "  task.train.learning_rate : 0.1 -> 0.2",
        "  task.train.optimizer.momentum : 0.9 -> 0.0",
    ]
    (accepting,) = re.findall(r"--allow_params_change=(.*)\.$", advice)
    check_changes(BEFORE, now, accepting.split(","))


@pytest.mark.parametrize(
    "allowed",
    ["task.train.optimizer", "task.train.optimizer.name", "task.train", "task"],
)
def test_what_is_allowed_covers_all_below_it(allowed: str) -> None:
    now = changed("task.train.optimizer.name : 'Adam'")
    check_changes(BEFORE, now, [allowed])


def test_what_is_allowed_covers_no_other() -> None:
    now = changed("task.train.optimizer.momentum : 0.5")
    with pytest.raises(ValueError, match="momentum : 0.9 -> 0.5"):
        check_changes(BEFORE, now, ["task.train.optimizer.name"])


def test_params_that_come_and_go_are_changes() -> None:
    with pytest.raises(ValueError, match=r"task.train.warmup : \(none\) -> 3"):
        check_changes(BEFORE, f"{BEFORE}task.train.warmup : 3\n", [])
    with pytest.raises(ValueError, match=r"task.train.warmup : 3 -> \(none\)"):
        check_changes(f"{BEFORE}task.train.warmup : 3\n", BEFORE, [])


def test_of_very_many_changes_the_first_are_shown() -> None:
    now = BEFORE + "".join(f"task.pipeline.cell_tpl[{n}].x : 1\n" for n in range(50))
    with pytest.raises(ValueError, match="and 30 more") as caught:
        check_changes(BEFORE, now, [])
    assert str(caught.value).endswith("--allow_params_change=task.pipeline.cell_tpl.")
    check_changes(BEFORE, now, ["task.pipeline.cell_tpl"])


def test_what_is_allowed_must_be_a_param() -> None:
    now = changed("task.train.learning_rate : 0.2")
    with pytest.raises(ValueError, match="no 'task.train.learningrate'. Did you mean"):
        check_changes(BEFORE, now, ["task.train.learningrate"])
