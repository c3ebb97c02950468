"""The study of a tiny model, from its flags to its files."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.local.blocks import SCHEMES
from tests.local_study.toy_study import CELLS, DIM, STEPS, toy_model
from tools.local_study.results_file import ResultsFile
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study import TrainRow, spread_moments, study
from tools.local_study.study_rows import Row, RowKey
from tools.local_study.training import train_row

_KEYS = [RowKey(*key) for key in itertools.product(SCHEMES, (4, 6), (0,))]
_FLOAT = 4  # Bytes.


def _run(
    out: Path, keys: list[RowKey] = _KEYS, train: TrainRow = train_row
) -> tuple[str, list[str]]:
    said: list[str] = []
    return study(toy_model(), keys, out, 4, 3, train, said.append), said


def _never(*args: Any) -> Row:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    out = tmp_path_factory.mktemp("study") / "out"
    return out, *_run(out)


@pytest.fixture(scope="module")
def rows(finished: tuple[Path, str, list[str]]) -> dict[RowKey, Row]:
    settings = {"steps": STEPS, "record_every": 2, "moments": [0, 4, 7]}
    return ResultsFile(finished[0] / "results.json", settings).rows


def test_all_schemes_are_in_the_table(finished: tuple[Path, str, list[str]]) -> None:
    out, report, _ = finished
    for key in _KEYS:
        assert f"| {key.scheme.ljust(15)} | {key.batch_size} " in report
    assert (out / "report.md").read_text() == report
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {
        "cost_and_time.png",
        "pareto.png",
        "similarity.png",
        "steps.png",
    }


def test_gradients_of_the_last_block_are_the_true_ones(
    rows: dict[RowKey, Row],
) -> None:
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


def test_records(rows: dict[RowKey, Row]) -> None:
    starts = set()
    for key, row in rows.items():
        assert [record.step for record in row.records] == [0, 2, 4, 6, 8]
        assert row.records[0].train_loss is None
        losses = [record.test["loss"] for record in row.records]
        assert losses[-1] < losses[0]
        starts.add((key.batch_size, losses[0]))
    # All schemes start with the same weights.
    assert len(starts) == 2


def test_what_crosses_boundaries(rows: dict[RowKey, Row]) -> None:
    found = {
        key.scheme: row.boundaries for key, row in rows.items() if key.batch_size == 6
    }
    size = 6 * DIM * _FLOAT
    weights = (DIM * DIM + DIM) * _FLOAT
    assert [tuple(dataclasses.astuple(b)) for b in found["backpropagation"]] == [
        (name, size, size, 0) for name in CELLS[:-1]
    ]
    assert [dataclasses.astuple(b) for b in found["greedy"]] == [
        (name, size, 0, 0) for name in CELLS[:-1]
    ]
    assert [dataclasses.astuple(b) for b in found["chunked"]] == [
        ("second", size, 0, 0)
    ]
    assert [dataclasses.astuple(b) for b in found["overlapping"]] == [
        ("first", size, 0, 2 * weights),
        ("second", size, 0, 0),
    ]


def test_schemes_without_heads_cost_the_same(rows: dict[RowKey, Row]) -> None:
    plain = rows[RowKey("backpropagation", 4, 0)]
    for scheme in ("chunked", "greedy"):
        row = rows[RowKey(scheme, 4, 0)]
        assert sum(b.handing_on for b in row.blocks) == plain.blocks[0].handing_on
        assert row.point(STEPS).cost > plain.point(STEPS).cost
        assert row.point(STEPS).time < plain.point(STEPS).time
    assert plain.blocks[0].step == 3 * plain.blocks[0].handing_on


def test_a_second_start_does_nothing_again(
    finished: tuple[Path, str, list[str]],
) -> None:
    out, report, said = finished
    assert len(said) == 2 * len(_KEYS)
    before = (out / "results.json").read_bytes()
    report_again, said_again = _run(out, train=_never)
    assert report_again == report
    assert [line.split()[0] for line in said_again] == [f"{n}/8" for n in range(1, 9)]
    assert (out / "results.json").read_bytes() == before


def test_an_interrupted_study_goes_on(rows: dict[RowKey, Row], tmp_path: Path) -> None:
    keys = [_KEYS[0], RowKey("greedy", 4, 0)]

    def train_first(model: StudiedModel, key: RowKey, *args: Any) -> Row:
        return train_row(model, key, *args) if key == keys[0] else _never()

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, keys, train_first)
    _, said = _run(tmp_path, keys)
    # The first row was there, so only the second has a line about its training.
    assert [line.split()[0] for line in said[:2]] == ["1/2", "2/2"]
    assert said[1].endswith(f": {STEPS} steps")
    settings = {"steps": STEPS}
    again = ResultsFile(tmp_path / "results.json", settings).rows[keys[1]]
    # To the last bit, as if it had not been.
    assert dataclasses.replace(again, seconds=rows[keys[1]].seconds) == rows[keys[1]]


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_moments_are_spread(number: int) -> None:
    moments = spread_moments(5, number)
    assert moments[0] == 0
    assert len(moments) == min(number, 5)
    assert max(moments) <= 4
