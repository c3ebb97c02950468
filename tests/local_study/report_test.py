"""Tables and charts show the rows, as means over seeds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.local_study.charts import draw_all
from tools.local_study.costs import BlockCost
from tools.local_study.report import format_report
from tools.local_study.study_rows import (
    Boundary,
    Record,
    Row,
    RowKey,
    Similarity,
    averages,
)

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.


def _row(scheme: str, batch_size: int, seed: int = 0, last_loss: float = 0.5) -> Row:
    """Returns a row of two layers and ten steps. Backpropagation has one block."""
    is_plain = scheme == "backpropagation"
    halves = [BlockCost(10.0, 36.0), BlockCost(10.0, 30.0)]
    moments = [(0, 0.25), (9, 0.75)]
    return Row(
        key=RowKey(scheme, batch_size, seed),
        blocks=[BlockCost(20.0, 60.0)] if is_plain else halves,
        boundaries=[Boundary("in", 4096, 4096 if is_plain else 0, 0)],
        records=[
            Record(0, None, {"loss": 2.0, "accuracy": 0.1}),
            Record(5, 1.5, {"loss": 1.0, "accuracy": 0.5}),
            Record(10, 1.0, {"loss": last_loss, "accuracy": 0.8}),
        ],
        similarities=[]
        if is_plain
        else [
            Similarity(step, {"in": value, "drop": None, "out": 1.0})
            for step, value in moments
        ],
        seconds=1.5,
    )


_ROWS = [
    _row("backpropagation", 4, last_loss=0.25),
    _row("backpropagation", 8, last_loss=0.5),
    _row("greedy", 4, last_loss=0.75),
    _row("greedy", 8, last_loss=0.625),
]
_REPORT = format_report("a.B", _ROWS)


def _cells(report: str, *begin: str) -> list[str]:
    """Returns the first line that begins with these cells."""
    lines = [[c.strip() for c in x.split("|")[1:-1]] for x in report.splitlines()]
    return next(x for x in lines if x[: len(begin)] == list(begin))


def test_metrics_and_costs_are_shown() -> None:
    plain = _cells(_REPORT, "backpropagation", "4", "1")
    assert plain[3:5] == ["0.2500", "0.8000"]
    assert plain[6] == plain[8] == "1.00"
    greedy = _cells(_REPORT, "greedy", "4", "2")
    assert greedy[3] == "0.7500"
    assert greedy[6] == "1.10"  # (36 + 30) / 60
    assert greedy[8] == "0.61"  # (36 + 4 / 10) / 60, of which 4 come once


def test_boundary_bytes_are_shown() -> None:
    assert re.search(r"\b4 examples\b", _REPORT)
    assert _cells(_REPORT, "in", "4.0") == ["in", "4.0", "4.0", "0.0"]


def test_the_frontier_is_shown() -> None:
    # The first is of trained weights, and larger batches take as many steps to it.
    assert _cells(_REPORT, "1.0000", "greedy")[2:4] == ["4", "5"]
    # The lowest that both reach is greedy's with batches of 8.
    assert _cells(_REPORT, "0.6250", "greedy")[2:4] == ["8", "10"]
    assert _cells(_REPORT, "0.6250", "backpropagation")[2:4] == ["4", "10"]
    hard = _REPORT.split("## Cosine")[0]
    assert _cells(hard, "0.3953", "greedy")[2] == "not reached"


def test_layers_without_gradients_have_empty_cells() -> None:
    assert _cells(_REPORT, "in", "0.750") == ["in", "0.750", "0.750"]
    assert _cells(_REPORT, "drop") == ["drop", "", ""]
    assert _cells(_REPORT, "out") == ["out", "1.000", "1.000"]


def test_rows_of_several_seeds_are_averaged() -> None:
    rows = [_row("greedy", 4, seed, last_loss=seed / 2) for seed in (1, 2)]
    (average,) = averages(rows)
    assert average.test_curve("loss") == [(0, 2.0), (5, 1.0), (10, 0.75)]
    assert average.train_curve() == [(5, 1.5), (10, 1.0)]
    assert average.similarities()[9] == {"in": 0.75, "drop": None, "out": 1.0}
    report = format_report("a.B", rows)
    assert re.search(r"\b2 seeds\b", report)
    assert _cells(report, "greedy", "4")[3] == "0.7500 ± 0.3536"


@pytest.mark.parametrize("number", [1, len(_ROWS)])
def test_charts_are_drawn(number: int, tmp_path: Path) -> None:
    """Backpropagation alone has no similarity."""
    draw_all(_ROWS[:number], tmp_path)
    names = {"cost_and_time.png", "pareto.png", "similarity.png", "steps.png"}
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == names - ({"similarity.png"} if number == 1 else set())
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in tmp_path.iterdir())
