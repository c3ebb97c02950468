"""What is known of cells before there are stages, against what stages then have."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.loops.dataflow import Dataflow
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.traced_cells import TracedCells, trace_cells
from tests.pipeline.example_layers import gradients, state_batch, state_cells

ROWS, DIM = 2, 6


def traced(cells: list[InstantiableParams], **params: Any) -> TracedCells:
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, num_micro_batches=4)
    (device,) = stage_devices(None, 1)
    return trace_cells(p.Set(**params), device)


def test_traffic_is_what_crosses_between_stages_of_a_cell_each() -> None:
    """A value that skips cells crosses all boundaries on its way, but goes once."""
    cells = traced(
        state_cells(), input_shapes=[(ROWS, DIM), (ROWS,)], input_dtypes=[None, "int32"]
    )
    flow = Dataflow([[call.call] for call in cells.calls], cells.outputs)
    crossing = [0] * len(cells.calls)
    for hop in flow.forward:
        spec = cells.specs[hop.value]
        for boundary in range(hop.source, hop.target):
            crossing[boundary] += spec.shape.num_elements() * spec.dtype.size
    assert cells.traffic[:-1] == crossing[:-1]
    # Of the state, `hidden` and `skipped`. `mask` is an input, and there already; so is
    # all that the first cell hands on.
    assert crossing[:-1] == [0, *[2 * ROWS * DIM * 4] * 4]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_layers_before_are_traced_for_the_mini_batch(batch_dim: int) -> None:
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
    kept = tf.TensorShape(shape(4 * ROWS, DIM)).num_elements()
    assert cells.before_bytes == 4 * (2 * weights + kept)


def test_dtypes_are_those_that_layers_compute_in() -> None:
    p = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)
    for dtype in (tf.float32, tf.bfloat16, tf.float64):
        cells = traced([p], input_shapes=[(ROWS, DIM)], fprop_dtype=dtype)
        assert {spec.dtype for spec in cells.specs.values()} == {dtype}


def test_a_model_is_none_the_worse_for_it() -> None:
    """Tracing cells makes no variable of the model, nor changes its numbers."""
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
            name="pipe", cell_tpl=state_cells(), splits=3, num_micro_batches=4
        )
        layer = p.Set(**known).Instantiate()
        result = gradients(layer, state_batch(8)).gradients
        found.append(
            [x.numpy().tobytes() for x in tf.nest.flatten(result) if x is not None]
        )
    assert found[0] == found[1]
