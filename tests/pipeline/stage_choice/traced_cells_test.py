"""Cells traced before there are stages, against the stages that follow."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserLayerError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.loops.dataflow import Dataflow
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.stage_choice.traced_cells import (
    TracedCells,
    sizes_for_micro_batch,
    trace_cells,
)
from tests.pipeline.example_layers import gradients, state_batch, state_cells
from tests.pipeline.plain_model import bytes_of
from tests.support.errors import fails

ROWS, DIM = 2, 6


def traced(cells: list[InstantiableParams], **params: Any) -> TracedCells:
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, num_micro_batches=4)
    (device,) = stage_devices(None, 1)
    return trace_cells(p.Set(**params), device)


def test_traffic_is_what_crosses_between_stages_of_one_cell() -> None:
    """A value that skips cells crosses all boundaries on its way, each once."""
    cells = traced(
        state_cells(), input_shapes=[(ROWS, DIM), (ROWS,)], input_dtypes=[None, "int32"]
    )
    flow = Dataflow([[layer.values] for layer in cells.layers], cells.outputs)
    crossing = [0] * len(cells.layers)
    for hop in flow.forward:
        spec = cells.specs[hop.value]
        for boundary in range(hop.source, hop.target):
            crossing[boundary] += spec.shape.num_elements() * spec.dtype.size
    assert cells.traffic[:-1] == crossing[:-1]
    # `hidden` and `skipped` of the state. `mask` is an input, like all outputs of the
    # first cell.
    assert crossing[:-1] == [0, *[2 * ROWS * DIM * 4] * 4]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_the_prologue_is_traced_for_the_mini_batch(batch_dim: int) -> None:
    def shape(rows: int, width: int) -> tuple[int, ...]:
        return (rows, width) if batch_dim == 0 else (3, rows, width)

    dense = FCLayer.Params().Set(input_dim=DIM, output_dim=5)
    after = FCLayer.Params().Set(input_dim=5, output_dim=5)
    cells = traced(
        [after],
        before_tpl=[dense],
        input_shapes=[shape(ROWS, DIM)],
        batch_dim=batch_dim,
    )
    (value,) = cells.inputs
    assert tuple(cells.specs[value].shape) == shape(ROWS, 5)
    weights = DIM * 5 + 5
    stashed = tf.TensorShape(shape(4 * ROWS, DIM)).num_elements()
    assert cells.prologue_bytes == 4 * (2 * weights + stashed)


def test_values_have_the_dtypes_that_layers_compute_in() -> None:
    p = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)
    for dtype in (tf.float32, tf.bfloat16, tf.float64):
        cells = traced([p], input_shapes=[(ROWS, DIM)], fprop_dtype=dtype)
        assert {spec.dtype for spec in cells.specs.values()} == {dtype}


@pytest.mark.exhaustive
def test_tracing_changes_nothing_of_the_model() -> None:
    """Neither its variables nor its numbers."""
    found = []
    for known in (
        {},
        {
            "memory_limit": 10**9,
            "input_shapes": [(ROWS, DIM), (ROWS,)],
            "input_dtypes": [None, tf.int32],
        },
    ):
        p = PipeliningLayer.Params().Set(
            name="pipe", cell_tpl=state_cells(), splits=2, num_micro_batches=4
        )
        layer = p.Set(**known).Instantiate()
        found.append(bytes_of(gradients(layer, state_batch(8)).gradients))
    assert found[0] == found[1]


class CheckingLayer(BaseLayer):
    """An identity that checks its context and its dtype."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        context = current_context()
        assert context.num_rows == x.shape[context.batch_dim]
        assert self.fprop_dtype == x.dtype == tf.bfloat16
        return tf.identity(x)


@pytest.mark.parametrize("dtypes", [{"dtype": "bfloat16"}, {"fprop_dtype": "bfloat16"}])
@pytest.mark.parametrize("batch_dim", [0, 1])
def test_flops_are_traced_in_the_dtype_and_the_rows_of_the_pipeline(
    dtypes: dict[str, str], batch_dim: int
) -> None:
    p = PipeliningLayer.Params().Set(name="pipe", batch_dim=batch_dim, **dtypes)
    dense = FCLayer.Params().Set(input_dim=DIM, output_dim=5)
    p.Set(before_tpl=[dense], cell_tpl=[CheckingLayer.Params()])
    p.Set(input_shapes=[(2, 3, DIM) if batch_dim else (2, DIM)])
    before, cells = sizes_for_micro_batch(p)
    assert [x.dtype for x in before[0].outputs + cells[0].outputs] == [tf.bfloat16] * 2


def test_outputs_of_unknown_shapes_are_an_error_of_their_cell() -> None:
    cut = FnLayer.Params().Set(fn=lambda x: tf.boolean_mask(x, x[:, 0] > 0.0))
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=[cut] * 2, splits="auto")
    p.Set(devices=["cpu:0"], input_shapes=[(ROWS, DIM)])
    with fails(UserLayerError, path="pipe.cell_tpl[0], FnLayer ''.outputs"):
        p.Instantiate()
