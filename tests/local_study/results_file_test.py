"""Rows outlive the process that found them, and those of another study are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local_study.made_up_rows import made_up_row
from tools.local_study.results_file import ResultsFile

_SETTINGS = {"model": "a.B", "steps": 10, "moments": [0, 9]}


def test_rows_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    rows = [made_up_row("greedy", 4), made_up_row("backpropagation", 4)]
    results = ResultsFile(path, _SETTINGS)
    assert results.rows == {}
    for number, row in enumerate(rows, start=1):
        results.add(row)
        again = ResultsFile(path, _SETTINGS).rows
        assert again == {row.key: row for row in rows[:number]}


def test_a_row_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = ResultsFile(path, _SETTINGS)
    results.add(made_up_row("greedy", 4))
    better = made_up_row("greedy", 4, last_loss=0.01)
    results.add(better)
    assert list(ResultsFile(path, _SETTINGS).rows.values()) == [better]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    ResultsFile(path, _SETTINGS).add(made_up_row("greedy", 4))
    told = r"/results\.json\b.*\bsteps=10\b.*\bsteps=11\b.*--out\b"
    with pytest.raises(ValueError, match=told):
        ResultsFile(path, _SETTINGS | {"steps": 11})


@pytest.mark.parametrize("content", ["", "{}", '{"settings": {}, "rows": [1]}', "[1]"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"/results\.json\b.*--out\b"):
        ResultsFile(path, _SETTINGS)
