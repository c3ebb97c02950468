"""What the planner says of GPipe's Transformers is near what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingvo_pipe.planner.counted_seconds import counted_seconds
from lingvo_pipe.planner.device_model import DEVICES
from tools.plan.memory_tables import (
    TRANSFORMERS,
    largest_layers_table,
    memory_row,
    predicted,
)
from tools.plan.throughput_table import (
    in_half_layers,
    step_seconds,
    throughput_row,
    throughputs,
    transformer_24,
    transformer_48,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "tools/plan/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", [1, 2])
def test_the_memory_of_table_1(place: int) -> None:
    size = TRANSFORMERS[place]
    ours = predicted(size)
    assert ours.parameters == pytest.approx(size.parameters, rel=0.01)
    assert ours.model_gib == pytest.approx(size.model_gib, rel=0.01)
    total = size.model_gib + size.activation_gib
    assert ours.total_gib == pytest.approx(total, rel=0.15)
    assert memory_row(size) in README


def test_the_throughput_of_table_2() -> None:
    speeds = transformer_48()
    ours = throughputs(speeds)
    assert ours == pytest.approx(speeds.published, rel=0.08)
    assert throughput_row(speeds, ours) in README


def test_the_throughput_of_table_3() -> None:
    """Of the Transformer; on eight devices only if layers may be cut in two."""
    speeds = transformer_24()
    assert throughputs(speeds)[:2] == pytest.approx(speeds.published[:2], rel=0.08)
    assert throughput_row(speeds, throughputs(speeds)) in README
    halves = in_half_layers(speeds)
    assert halves == pytest.approx(speeds.published, rel=0.08)
    name = f"{speeds.name}, in half layers"
    assert throughput_row(speeds._replace(name=name), halves) in README


@pytest.mark.parametrize("number", [2, 8])
def test_half_layers_are_counted_as_layers_are(number: int) -> None:
    speeds = transformer_24()
    device = DEVICES[speeds.device]
    cells = counted_seconds(speeds.model.costs(32), device, "float32")
    whole = speeds.model.evenly(speeds.device, number, 32).timeline.step_seconds
    assert step_seconds(speeds, cells, number) == pytest.approx(whole, rel=1e-3)


def test_the_largest_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two rows; the others take long."""
    monkeypatch.setattr("tools.plan.memory_tables.TRANSFORMERS", TRANSFORMERS[:3])
    *_, one, eight = largest_layers_table()
    assert one.startswith("| 1 | 13 | 12 |")
    assert eight.startswith("| 8 | 103 | 103 |")
    assert one in README
    assert eight in README
