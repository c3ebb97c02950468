"""Stages of even times, where times are measured."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline import stage_ends
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.pipeline.traced_cells import trace_cells
from tests.pipeline.example_layers import gradients, loss_fn, raw_values

DIM, ROWS, M = 6, 2, 4
EASY = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)


class HardLayer(BaseLayer):
    """Takes hundreds of times as long as FPropMeta says."""

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        return EASY.cls.FPropMeta(EASY, *shapes)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        wide = tf.tile(x, [100, 50])
        for _ in range(20):
            wide = tf.tanh(tf.matmul(wide, tf.ones([50 * DIM, 50 * DIM])) * 1e-3)
        return x + wide[:ROWS, :DIM]


class PickyLayer(BaseLayer):
    """Takes numbers above 1 alone."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_greater(x, 1.0)]):
            return tf.identity(x)


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
    return measured_seconds(traced.calls, traced.specs, device)


@pytest.mark.parametrize("place", range(5))
def test_what_takes_long_has_a_stage_of_its_own(place: int) -> None:
    cells = [EASY] * 5
    cells[place] = HardLayer.Params()
    num_stages = 2 + (0 < place < 4)
    layer = pipeline(cells, num_stages)
    stage = layer.stage_of_cell(place)
    assert [0, *layer.ends][stage : stage + 2] == [place, place + 1]
    counted = pipeline(cells, num_stages, cell_costs=None)
    sizes = [b - a for a, b in itertools.pairwise([0, *counted.ends])]
    assert max(sizes) <= 3, "by FPropMeta all are alike"


def test_alike_cells_are_measured_once() -> None:
    first, *middle, last = seconds([EASY, *[EASY] * 50, HardLayer.Params()])
    assert len(set(middle)) == 1
    assert sum(last) > 20 * sum(middle[0])
    assert all(0 < time < 1 for time in (*first, *middle[0], *last))


def test_the_stages_chosen_can_be_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cells = [EASY, DropoutLayer.Params().Set(keep_prob=0.5), HardLayer.Params(), EASY]
    with caplog.at_level(logging.WARNING):
        layer = pipeline(cells, 2)
    told = [record.getMessage() for record in caplog.records]
    (text,) = [text for text in told if "splits='auto'" in text]
    found = re.search(r"\bpipe\b.*splits='auto'.*\[(\d+), 4\]", text)
    assert found
    ends = [int(found[1]), 4]
    assert layer.ends == ends
    same = pipeline(cells, 2, splits=ends, cell_costs=None, input_shapes=None)
    assert same.devices == layer.devices
    assert [same.stage_of_cell(i) for i in range(4)] == [
        layer.stage_of_cell(i) for i in range(4)
    ]
    assert list(same.VariablePaths()) == list(layer.VariablePaths())


def test_measured_stages_leave_the_bytes_of_one() -> None:
    cells = [EASY, DropoutLayer.Params().Set(keep_prob=0.5), EASY, EASY]
    targets = NestedMap(label=tf.range(8) % 3, weight=tf.ones([8]))
    batch = [tf.random.stateless_normal([8, DIM], [0, 1])], targets
    layer = pipeline(cells, 3)
    one = pipeline(cells, 1, splits=1, cell_costs=None, input_shapes=None)
    for a, b in zip(*map(tf.nest.flatten, map(raw_values, (layer, one))), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    results = [gradients(p, batch, loss=loss_fn).gradients for p in (layer, one)]
    for a, b in zip(*map(tf.nest.flatten, results), strict=True):
        assert (a is b is None) or a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("cell_costs", [None, "measured"])
@pytest.mark.parametrize(
    ("recompute", "ends"),
    # Forward 1 and backward 2: a cell that is computed again costs 4 rather than 3.
    [("always", [3, 5]), ("never", [3, 5]), ([0, 1], [2, 5]), ([3, 4], [3, 5])],
    ids=str,
)
def test_what_is_computed_again_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
    cell_costs: str | None,
    recompute: Any,
    ends: list[int],
) -> None:
    monkeypatch.setattr(
        stage_ends, "measured_seconds", lambda calls, *_: [CellSeconds(1, 2)] * 5
    )
    layer = pipeline([EASY] * 5, 2, cell_costs=cell_costs, recompute=recompute)
    assert layer.ends == ends


def test_what_can_not_be_run_on_made_up_inputs_is_named() -> None:
    named = r"(?s)\bcpu:0\b.*\bpipe\b.*\bcell 1\b.*\bcell_costs\b"
    with pytest.raises(ValueError, match=named):
        pipeline([EASY, PickyLayer.Params(), EASY], 2)


def test_compiled_cells_are_measured_compiled() -> None:
    assert len(pipeline([EASY] * 3, 2, jit_compile=True).ends) == 2
