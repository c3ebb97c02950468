"""Of a family the largest model is planned that fits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from lingvo_pipe.planner.planning import NothingFits
from lingvo_pipe.planner.search import Found
from tests.support.cases import exhaustive
from tools.plan.largest import largest_that_fits
from tools.plan.plan import main
from tools.plan.planned_model import PlannedModel
from tools.plan.rented import rented

FAMILY = "lm.giant.L1"
NAMES = ["lm.giant.L13", "lm.giant.L103", "lm.giant.L1663"]
FOUND = Found([], 0, [])


def up_to(most: int) -> Callable[[PlannedModel], Found]:
    """Plans models of no more parameters than so many."""

    def plan(model: PlannedModel) -> Found:
        if model.num_parameters > most:
            raise NothingFits("too large")
        return FOUND

    return plan


@pytest.mark.parametrize("place", [0, 1, *map(exhaustive, range(2, len(NAMES)))])
def test_it_is_the_largest_and_what_is_larger_is_told(place: int) -> None:
    most = PlannedModel.registered(NAMES[place]).num_parameters
    lines: list[str] = []
    model, found = largest_that_fits(FAMILY, "", up_to(most), lines.append)
    assert (model.name, found) == (NAMES[place], FOUND)
    tried = [line.split(",")[0] for line in lines[::2]]
    assert tried == list(reversed(NAMES[place:]))
    assert set(lines[1::2]) == ({"  too large"} if place < 2 else set())


def test_models_are_changed_as_asked() -> None:
    change = "input.batch_size : 7"
    lines: list[str] = []
    model, _ = largest_that_fits("lm.giant.L3", change, up_to(10**9), lines.append)
    title = model.title(None, rented(2, "TPUv3"))
    assert re.search(r"\b7 rows\b.*\b2 TPUv3$", title)
    with pytest.raises(AttributeError, match="'inputt'.*'input'"):
        largest_that_fits("lm.giant.L3", "inputt : 1", up_to(10**9), lines.append)


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
    ("family", "fault"),
    [
        ("lm.giants.L13", r"--largest\b.*'lm\.giants\.L13'.*'lm\.giant\.L13'"),
        ("nothing", r"--largest\b.*'nothing'.*--model_imports\b"),
        ("lm.giant.L10", r" lm\.giant\.L10 "),
    ],
)
def test_without_any_it_says_so(
    family: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--largest={family}", "--devices=2xTPUv3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(fault, error)
