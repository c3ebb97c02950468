"""The study of a tiny model, and its file of results."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lingvo_pipe.local_parallelism.blocks import SCHEMES
from tests.local_study.made_up_rows import made_up_row
from tests.local_study.toy_study import CELLS, DIM, STEPS, toy_model
from tests.support.cases import exhaustive
from tests.support.errors import fails
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study import ResultsFile, TrainRow, spread_moments, study
from tools.local_study.study_rows import Row, RowKey
from tools.local_study.training import train_row

_KEYS = [*(RowKey(scheme, 6, 0) for scheme in SCHEMES), RowKey("backpropagation", 4, 0)]
_FLOAT = 4  # Bytes.
_SETTINGS = {"model": "a.B", "steps": 10, "moments": [0, 9]}


def _run(
    out: Path, keys: list[RowKey] = _KEYS, train: TrainRow = train_row
) -> tuple[str, list[str]]:
    lines: list[str] = []
    return study(toy_model(), keys, out, 4, 3, train, lines.append), lines


def _never(*args: Any) -> Row:
    raise KeyboardInterrupt


class Finished(NamedTuple):
    """A finished study: its rows' keys, folder, report and log."""

    keys: list[RowKey]
    out: Path
    report: str
    lines: list[str]


@pytest.fixture(scope="module", params=[exhaustive(_KEYS)], ids=len)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    out = tmp_path_factory.mktemp("study") / "out"
    return Finished(request.param, out, *_run(out, request.param))


@pytest.fixture(scope="module")
def rows(finished: Finished) -> dict[RowKey, Row]:
    settings = {"steps": STEPS, "record_every": 2, "moments": [0, 4, 7]}
    return ResultsFile(finished.out / "results.json", settings).rows


def test_all_schemes_are_in_the_table(finished: Finished) -> None:
    keys, out, report, _ = finished
    for key in keys:
        assert f"| {key.scheme.ljust(15)} | {key.batch_size} " in report
    assert (out / "report.md").read_text() == report
    charts = {path.name for path in out.glob("*.png")}
    assert charts == {"cost_and_time.png", "pareto.png", "similarity.png", "steps.png"}


def test_gradients_of_the_last_block_are_the_true_ones(rows: dict[RowKey, Row]) -> None:
    for key, row in rows.items():
        moments = [each.step for each in row.similarities]
        assert moments == ([] if key.scheme == "backpropagation" else [0, 4, 7])
        for each in row.similarities:
            assert list(each.layers) == CELLS
            assert each.layers["third"] is None  # It has no weights.
            assert each.layers["last"] == pytest.approx(1.0, abs=1e-5)
            first = each.layers["first"]
            assert first is not None
            assert -1.0 <= first < 0.9999


def test_records_are_regular_and_start_equal(rows: dict[RowKey, Row]) -> None:
    starts = set()
    for key, row in rows.items():
        assert [record.step for record in row.records] == [0, 2, 4, 6, 8]
        assert row.records[0].train_loss is None
        losses = [record.test["loss"] for record in row.records]
        assert losses[-1] < losses[0]
        starts.add((key.batch_size, losses[0]))
    # All schemes start with the same weights.
    assert len(starts) == len({key.batch_size for key in rows})


def test_boundaries_have_their_bytes(rows: dict[RowKey, Row]) -> None:
    found = {
        key.scheme: row.boundaries for key, row in rows.items() if key.batch_size == 6
    }
    size = 6 * DIM * _FLOAT
    weights = (DIM * DIM + DIM) * _FLOAT
    expected = {
        "backpropagation": [(name, size, size, 0) for name in CELLS[:-1]],
        "greedy": [(name, size, 0, 0) for name in CELLS[:-1]],
        "chunked": [("second", size, 0, 0)],
        "overlapping": [("first", size, 0, 2 * weights), ("second", size, 0, 0)],
    }
    for scheme, boundaries in found.items():
        assert [dataclasses.astuple(b) for b in boundaries] == expected[scheme]


def test_schemes_without_heads_cost_the_same(rows: dict[RowKey, Row]) -> None:
    plain = rows[RowKey("backpropagation", 6, 0)]
    for scheme in {"chunked", "greedy"} & {key.scheme for key in rows}:
        row = rows[RowKey(scheme, 6, 0)]
        assert sum(b.forward for b in row.blocks) == plain.blocks[0].forward
        assert row.point(STEPS).cost > plain.point(STEPS).cost
        assert row.point(STEPS).time < plain.point(STEPS).time
    assert plain.blocks[0].step == 3 * plain.blocks[0].forward


def test_a_finished_study_trains_nothing_again(finished: Finished) -> None:
    keys, out, report, lines = finished
    assert len(lines) == 2 * len(keys)
    before = (out / "results.json").read_bytes()
    report_again, lines_again = _run(out, keys, _never)
    assert report_again == report
    assert [line.split()[0] for line in lines_again] == [
        f"{n}/{len(keys)}" for n in range(1, len(keys) + 1)
    ]
    assert (out / "results.json").read_bytes() == before


@pytest.mark.exhaustive
def test_an_interrupted_study_resumes(rows: dict[RowKey, Row], tmp_path: Path) -> None:
    keys = _KEYS[:2]

    def train_first(model: StudiedModel, key: RowKey, *args: Any) -> Row:
        return rows[key] if key == keys[0] else _never()

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, keys, train_first)
    _, lines = _run(tmp_path, keys)
    # The first row exists, so only the second has a line about its training.
    assert [line.split()[0] for line in lines[:2]] == ["1/2", "2/2"]
    assert lines[1].endswith(f": {STEPS} steps")
    settings = {"steps": STEPS}
    again = ResultsFile(tmp_path / "results.json", settings).rows[keys[1]]
    # The row equals the uninterrupted one to the last bit.
    assert dataclasses.replace(again, seconds=rows[keys[1]].seconds) == rows[keys[1]]


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_moments_are_spread(number: int) -> None:
    moments = spread_moments(5, number)
    assert moments[0] == 0
    assert len(moments) == min(number, 5)
    assert max(moments) <= 4


def test_rows_are_read_back_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    rows = [made_up_row("greedy", 4), made_up_row("backpropagation", 4)]
    results = ResultsFile(path, _SETTINGS)
    assert results.rows == {}
    for number, row in enumerate(rows, start=1):
        results.add(row)
        again = ResultsFile(path, _SETTINGS).rows
        assert again == {row.key: row for row in rows[:number]}
    better = made_up_row("greedy", 4, last_loss=0.01)
    results.add(better)
    assert list(ResultsFile(path, _SETTINGS).rows.values()) == [better, rows[1]]
    with fails(path=str(path), expected="rows with steps=11", got="steps=10"):
        ResultsFile(path, _SETTINGS | {"steps": 11})


@pytest.mark.parametrize("content", ["", "{}", '{"settings": {}, "rows": [1]}', "[1]"])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with fails(path=str(path), expected="the file of a study"):
        ResultsFile(path, _SETTINGS)
