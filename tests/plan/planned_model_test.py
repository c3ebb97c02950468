"""A family's largest model that fits is planned."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.planner.search.fitting_plan import NothingFits
from lingvo_pipe.tools.plan.plan import main
from lingvo_pipe.tools.plan.planned_model import (
    PlannedModel,
    find_devices,
    largest_that_fits,
)
from tests.support.cases import exhaustive

FAMILY = "lm.giant.L1"
NAMES = ["lm.giant.L13", "lm.giant.L103", "lm.giant.L1663"]
FOUND = SearchResult([], 0, [])


def up_to(most: int) -> Callable[[PlannedModel], SearchResult]:
    """Returns a planner for which only models up to this many parameters fit."""

    def plan(model: PlannedModel) -> SearchResult:
        if model.num_parameters > most:
            raise NothingFits("too large")
        return FOUND

    return plan


@pytest.mark.parametrize("index", [0, *map(exhaustive, range(1, len(NAMES)))])
def test_it_plans_the_largest_and_reports_larger_ones(index: int) -> None:
    most = PlannedModel(NAMES[index]).num_parameters
    lines: list[str] = []
    model, found = largest_that_fits(FAMILY, PlannedModel, up_to(most), lines.append)
    assert (model.name, found) == (NAMES[index], FOUND)
    tried = [line.split(",")[0] for line in lines[::2]]
    assert tried == list(reversed(NAMES[index:]))
    assert set(lines[1::2]) == ({"  too large"} if index < 2 else set())


def test_models_have_the_users_changes() -> None:
    lines: list[str] = []

    def changed(override: str) -> PlannedModel:
        model, _ = largest_that_fits(
            "lm.giant.L3",
            lambda name: PlannedModel(name, override),
            up_to(10**9),
            lines.append,
        )
        return model

    title = changed("input.batch_size : 7").title(find_devices(2, "TPUv3"))
    assert re.search(r"\b7 rows\b.*\b2 TPUv3$", title)
    with pytest.raises(AttributeError, match="'inputt'.*'input'"):
        changed("inputt : 1")


@pytest.mark.exhaustive
def test_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--largest={FAMILY}", "--devices=8xTPUv3"]) == 0
    first, lacks, second, nothing, title, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("lm.giant.L1663, 83,876,910,336 ")
    assert re.search(r"^  .*\b8 TPUv3\b.*recompute=", lacks)
    assert second.startswith("lm.giant.L103, ")
    assert (nothing, title[:14]) == ("", "lm.giant.L103:")
    assert "--devices=8" in rest


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("lm.giants.L13", r"--largest\b.*'lm\.giants\.L13'.*'lm\.giant\.L13'"),
        ("lm.gaint", r"--largest\b.*'lm\.gaint'.*'lm\.giant'"),
        ("nothing", r"--largest\b.*'nothing'.*--model_imports\b"),
        ("lm.giant.L10", r" lm\.giant\.L10 "),
    ],
)
def test_an_error_if_there_is_none(
    family: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--largest={family}", "--devices=2xTPUv3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(words, error)
