"""The planner's predictions for GPipe's Transformers are near the published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.resources.known_devices import DEVICES
from tools.published.memory_tables import (
    TRANSFORMERS,
    largest_layers_table,
    memory_row,
    predict_memory,
)
from tools.published.published import (
    TRANSFORMER_24,
    TRANSFORMER_48,
    in_half_layers,
    predict_throughput,
    step_seconds,
    throughput_row,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "lingvo_pipe/tools/plan/counting.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", [1, 2])
def test_the_memory_of_table_1(index: int) -> None:
    size = TRANSFORMERS[index]
    ours = predict_memory(size)
    assert ours.parameters == pytest.approx(size.parameters, rel=0.01)
    assert ours.model_gib == pytest.approx(size.model_gib, rel=0.01)
    assert ours.total_gib == pytest.approx(size.total_gib, rel=0.15)
    assert memory_row(size) in PAGE


@pytest.mark.exhaustive
def test_the_throughput_of_table_2() -> None:
    row = TRANSFORMER_48
    ours = predict_throughput(row)
    assert ours == pytest.approx(row.published, rel=0.08)
    assert throughput_row(row, ours) in PAGE


@pytest.mark.exhaustive
def test_the_throughput_of_table_3() -> None:
    """On eight devices they agree only if layers may be cut in two."""
    row = TRANSFORMER_24
    assert predict_throughput(row)[:2] == pytest.approx(row.published[:2], rel=0.08)
    assert throughput_row(row, predict_throughput(row)) in PAGE
    halves = in_half_layers(row)
    assert halves == pytest.approx(row.published, rel=0.08)
    name = f"{row.name}, in half layers"
    assert throughput_row(row._replace(name=name), halves) in PAGE


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [2, 8])
def test_half_layers_are_simulated_like_layers(number: int) -> None:
    row = TRANSFORMER_24
    device = DEVICES[row.device]
    cells = flops_time(row.model.costs(32), device, "float32")
    whole = row.model.evenly(row.device, number, 32).timeline.step_seconds
    assert step_seconds(row, cells, number) == pytest.approx(whole, rel=1e-3)


@pytest.mark.exhaustive
def test_the_largest_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tests the first two rows; the others take long."""
    monkeypatch.setattr("tools.published.memory_tables.TRANSFORMERS", TRANSFORMERS[:3])
    *_, one, eight = largest_layers_table()
    assert one.startswith("| 1 | 13 | 13 |")
    assert eight.startswith("| 8 | 103 | 111 |")
    assert one in PAGE
    assert eight in PAGE
