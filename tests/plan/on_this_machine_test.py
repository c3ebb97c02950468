"""`plan_check` compares predictions with measurements."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from tools.plan_check import on_this_machine
from tools.plan_check.measured_ways import Figures, ways

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.

FEW = ways([4])
PAGE = Path(__file__).parents[2] / "lingvo_pipe/tools/plan/counting.md"


def figures(rounds: list[list[tuple[float, float]]]) -> Figures:
    """Returns figures with these seconds by round and way; bytes are 8 and 10 MiB."""
    numbers = np.array([[[(t, 8e6), (s, 1e7)] for t, s in own] for own in rounds])
    return Figures(16, FEW, numbers)


def test_errors_are_medians_of_ratios_within_rounds() -> None:
    first, *others = [(1.0, 1.0)] * 6
    slow = [(2.0, 2.0)] * 6  # The machine is slower in this round: no error.
    found = figures([[first, *others], slow, [(1.1, 1.0), *others]])
    assert found.errors[:, 0] == pytest.approx(0)
    assert found.errors[:, 1] == pytest.approx(-0.2)
    assert found.drifts == pytest.approx(np.array([[1.0] * 6, [-0.5] * 6]))


def test_the_page_states_the_errors_of_its_table() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| (?:image|lm|mt)\.\S+ \| (.*) \|$", text, re.MULTILINE)
    stated = re.search(
        r"the time is (\S+) %, the largest (\S+) %; of memory (\S+) % and (\S+) %",
        text,
    )
    assert stated is not None
    for column, median, largest in ((2, *stated.group(1, 2)), (4, *stated.group(3, 4))):
        cells = [cell for row in rows for cell in row.split(" | ")[column].split(", ")]
        errors = [abs(float(cell)) for cell in cells]
        assert f"medians over {len(errors)} ways" in text
        assert text.count(f" {median} % for ") == 1
        assert statistics.median(errors) == float(median)
        assert max(errors) == float(largest)


def test_the_choice_is_compared_with_the_fastest() -> None:
    found = figures([[(1.0, 1.5), (1.1, 1.2), *[(9.0, 9.0)] * 4]])
    assert found.chosen == 0
    assert found.behind == pytest.approx(0.25)


def test_each_model_is_listed_or_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, _: int) -> Figures:
        if name.startswith("lm.giant"):
            raise ValueError("needs 99 GiB")
        return figures([[(1.0, 1.25)] * 6, [(0.8, 1.0)] * 6])

    monkeypatch.setattr(on_this_machine, "_in_own_process", measured)
    assert on_this_machine.main(["--models="]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^\| mt\.cldr\.TransformerTiny \|", out, re.M)) == len(FEW)
    assert re.search(r"^- lm\.giant\.L1663\b.*99 GiB", out, re.M)
    assert "median 20.0%" in out
    assert "changes by 20.0% in the median" in out


@pytest.mark.parametrize(
    ("flag", "pattern"),
    [
        ("--models=mt,lm.tex_", r"^error: --models: .*\blm\.tex_"),
        ("--model=lm.text.TransformerTyny", r"^error: .*\bTransformerTiny\b"),
    ],
)
def test_unknown_models_are_refused_with_a_line(flag: str, pattern: str) -> None:
    with pytest.raises(SystemExit, match=pattern):
        on_this_machine.main([flag])
