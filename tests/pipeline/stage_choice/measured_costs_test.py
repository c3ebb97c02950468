"""Stages of equal measured times."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice import measured_costs, stage_boundaries
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.pipeline.stage_choice.traced_cells import trace_cells
from tests.support.cases import exhaustive

DIM, ROWS, M = 6, 2, 4
EASY = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)


class HardLayer(BaseLayer):
    """A layer hundreds of times slower than its FPropMeta."""

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        return EASY.cls.FPropMeta(EASY, *shapes)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        wide = tf.tile(x, [100, 50])
        for _ in range(20):
            wide = tf.tanh(tf.matmul(wide, tf.ones([50 * DIM, 50 * DIM])) * 1e-3)
        return x + wide[:ROWS, :DIM]


class PickyLayer(BaseLayer):
    """A layer that fails for numbers up to 1."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_greater(x, 1.0)]):
            return tf.identity(x)


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends measurements soon, as the cells here differ much or not at all."""
    monkeypatch.setattr(measured_costs, "_SECONDS", 0.05)


def pipeline(
    cells: list[InstantiableParams], num_devices: int, **params: Any
) -> PipeliningLayer:
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=[cell.Copy() for cell in cells],
        splits="auto",
        devices=[f"cpu:{i}" for i in range(num_devices)],
        num_micro_batches=M,
        cell_costs="measured",
        input_shapes=[(ROWS, DIM)],
    )
    return p.Set(**params).Instantiate()


def seconds(cells: list[InstantiableParams]) -> list[CellSeconds]:
    p = PipeliningLayer.Params().Set(
        name="pipe", cell_tpl=cells, input_shapes=[(ROWS, DIM)]
    )
    (device,) = stage_devices(None, 1)
    traced = trace_cells(p, device)
    return measured_seconds(traced.layers, traced.specs, device)


@pytest.mark.parametrize("slow", [2, *map(exhaustive, [0, 1, 3, 4])])
def test_a_slow_cell_has_a_stage_of_its_own(slow: int) -> None:
    cells = [EASY] * 5
    cells[slow] = HardLayer.Params()
    num_stages = 2 + (0 < slow < 4)
    layer = pipeline(cells, num_stages)
    stage = layer.stage_of_cell(slow)
    assert [0, *layer.boundaries][stage : stage + 2] == [slow, slow + 1]
    by_flops = pipeline(cells, num_stages, cell_costs=None)
    sizes = [b - a for a, b in itertools.pairwise([0, *by_flops.boundaries])]
    assert max(sizes) <= 3, "by FPropMeta all are alike"


@pytest.mark.exhaustive
def test_alike_cells_are_measured_once() -> None:
    first, *middle, last = seconds([EASY, *[EASY] * 9, HardLayer.Params()])
    assert len(set(middle)) == 1
    assert sum(last) > 20 * sum(middle[0])
    assert all(0 < time < 1 for time in (*first, *middle[0], *last))


def test_the_log_shows_the_chosen_stages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cells = [EASY, DropoutLayer.Params().Set(keep_prob=0.5), HardLayer.Params(), EASY]
    with caplog.at_level(logging.WARNING):
        layer = pipeline(cells, 2)
    logged = [record.getMessage() for record in caplog.records]
    (text,) = [text for text in logged if "splits='auto'" in text]
    found = re.search(r"\bpipe\b.*splits='auto'.*\[(\d+), 4\]", text)
    assert found
    boundaries = [int(found[1]), 4]
    assert layer.boundaries == boundaries
    same = pipeline(cells, 2, splits=boundaries, cell_costs=None, input_shapes=None)
    assert same.devices == layer.devices
    assert [same.stage_of_cell(i) for i in range(4)] == [
        layer.stage_of_cell(i) for i in range(4)
    ]
    assert list(same.VariablePaths()) == list(layer.VariablePaths())


@pytest.mark.parametrize("cell_costs", [None, "measured"])
@pytest.mark.parametrize(
    ("recompute", "boundaries"),
    # Forward 1 and backward 2: a recomputed cell costs 4 rather than 3.
    [("always", [3, 5]), ("never", [3, 5]), ([0, 1], [2, 5]), ([3, 4], [3, 5])],
    ids=str,
)
def test_recomputed_forward_passes_count_twice(
    monkeypatch: pytest.MonkeyPatch,
    cell_costs: str | None,
    recompute: Any,
    boundaries: list[int],
) -> None:
    monkeypatch.setattr(
        stage_boundaries, "measured_seconds", lambda calls, *_: [CellSeconds(1, 2)] * 5
    )
    layer = pipeline([EASY] * 5, 2, cell_costs=cell_costs, recompute=recompute)
    assert layer.boundaries == boundaries


def test_a_cell_that_fails_on_made_up_inputs_is_named() -> None:
    named = r"(?s)\bpipe\b.*\bcpu:0\b.*\bcell 1\b.*\bcell_costs\b"
    with pytest.raises(ValueError, match=named):
        pipeline([EASY, PickyLayer.Params(), EASY], 2)


def test_compiled_cells_are_measured_compiled() -> None:
    assert len(pipeline([EASY] * 3, 2, jit_compile=True).boundaries) == 2
