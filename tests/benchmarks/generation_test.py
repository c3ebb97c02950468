"""A token's time is measured and predicted for each way to generate."""

from __future__ import annotations

import pytest

from tools.benchmarks.generation import Seconds, Way, compare, table_rows, ways

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.


def test_a_token_waits_for_all_stages_or_for_the_busiest_device() -> None:
    alone = {4: 3.0, 2: 2.0, 1: 1.5}
    assert Way(2, 4, 1).predicted(alone) == 3.0
    assert Way(2, 4, 2).predicted(alone) == 2.0
    assert Way(2, 3, 2).predicted(alone) == 2.0
    assert Way(2, 4, 4).predicted(alone) == 3.0
    assert Way(1, 4, 2).predicted(alone) == 4.0


def test_each_way_has_a_row() -> None:
    """With what its prediction needs."""
    measured = {way: Seconds(1.0, 0.5) for way in ways()}
    rows = list(table_rows(measured))
    assert len(rows) == len(measured)
    assert rows[0] == ("1", "2", "1", "1000.0", "1000.0", "500.0", "500.0", "4")


def test_measures() -> None:
    chosen = [Way(1, 1, 1), Way(1, 2, 1), Way(2, 2, 2)]
    *rows, _ = compare(chosen, num_turns=1)[2:]
    cells = [[float(x) for x in row.strip("| ").split("|")] for row in rows]
    assert [row[:3] for row in cells] == [[1, 1, 1], [1, 2, 1], [2, 2, 2]]
    assert all(min(row) > 0 for row in cells)
