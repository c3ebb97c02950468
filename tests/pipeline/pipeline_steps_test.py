"""Several steps in one graph compute the bytes of single steps.

Shapes: N steps, B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipeline_steps import PipelineSteps
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD
from lingvo_pipe.pipeline.simulation.timeline import Timeline, steps_ahead
from tests.pipeline.example_layers import (
    NUM_CLASSES,
    gradients,
    loss_fn,
    pipeline,
    raw_values,
)
from tests.pipeline.local_blocks import batch, cells, dense
from tests.pipeline.plain_model import bytes_of
from tests.support.cases import exhaustive
from tests.support.errors import fails

RATE = 0.3
FIRST_STEP = 5


def _change(
    layers: Sequence[BaseLayer],
    all_gradients: Sequence[Any],
    accumulated: Sequence[Any],
    step: tf.Tensor,
) -> list[tf.Tensor]:
    """Descends along the gradients; notes their sum and the step."""
    total = tf.zeros([])
    for layer, tree, accumulators in zip(
        layers, all_gradients, accumulated, strict=True
    ):
        for v, gradient in zip(
            tf.nest.flatten(layer.vars), tf.nest.flatten(tree), strict=True
        ):
            if gradient is not None:
                v.assign_sub(RATE * gradient)
                total += tf.reduce_sum(gradient)
        with ForwardContext(step=step):
            layer.PostTrainingStepUpdate(accumulators)
    return [total, step]


def _batches(num_steps: int, batch_size: int) -> list[Any]:
    return [batch(batch_size, seed) for seed in range(num_steps)]


def _one_by_one(layer: PipeliningLayer, batches: Sequence[Any]) -> list[bytes]:
    """Returns the metrics of all steps, and the variables after them."""
    metrics = []
    for n, data in enumerate(batches):
        step = FIRST_STEP + n
        result = gradients(layer, data, step)
        accumulated = result.accumulated.cells
        _change(layer.cells, result.gradients.cells, accumulated, tf.constant(step))
        metrics.append(result.metrics)
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *metrics)
    return bytes_of((stacked, raw_values(layer)))


def _at_once(layer: PipeliningLayer, batches: Sequence[Any]) -> Any:
    steps = _steps(layer)
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *batches)
    tables = steps.tables(len(batches))
    first = tf.constant(FIRST_STEP, tf.int64)
    return steps.run(raw_values(layer), stacked, first, tables)


def _steps(layer: PipeliningLayer) -> PipelineSteps:
    return PipelineSteps(layer, lambda data: data, loss_fn, _change)


OPTIONS: list[dict[str, Any]] = [
    {"splits": 1},
    {"splits": [3, 7, 9], "schedule": "local", "recompute": "never"},
    {"splits": 2, "offload": "always"},
    {"splits": [1, 3, 5, 7, 9], "schedule": "local"},
    {"splits": 4, "schedule": "gpipe"},
    {"splits": [1, 3, 7, 9], "schedule": "interleaved", "stages_per_device": 2},
    {"splits": 3, "schedule": "zero_bubble", "recompute": "never"},
]


def _two_blocks() -> list[InstantiableParams]:
    """Returns two blocks, of which two equal stages divide the second."""
    three_blocks = cells()
    return [*three_blocks[1:6], three_blocks[-1]]


@pytest.mark.parametrize(
    ("make_cells", "batch_size", "num_steps", "chosen"),
    [
        exhaustive(cells, 8, 6, OPTIONS),
        exhaustive(cells, 7, 6, OPTIONS[1:3]),
        (_two_blocks, 7, 3, OPTIONS[2:3]),
    ],
)
def test_bytes_are_those_of_steps_one_by_one(
    make_cells: Callable[[], list[InstantiableParams]],
    batch_size: int,
    num_steps: int,
    chosen: list[dict[str, Any]],
) -> None:
    batches = _batches(num_steps, batch_size)
    want = _one_by_one(pipeline(make_cells(), 1, 4), batches)
    for options in chosen:
        others = {k: v for k, v in options.items() if k != "splits"}
        layer = pipeline(make_cells(), options["splits"], 4, **others)
        result = _at_once(layer, batches)
        assert bytes_of((result.metrics, raw_values(layer))) == want, options


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_steps", [1, 2, 9])
def test_any_number_of_steps_of_one_micro_batch(num_steps: int) -> None:
    """Fewer than the steps that a block may be ahead, and more."""
    batches = _batches(num_steps, 4)
    want = _one_by_one(pipeline(cells(), 1, 1), batches)
    layer = pipeline(cells(), [3, 7, 9], 1, schedule="local")
    result = _at_once(layer, batches)
    assert bytes_of((result.metrics, raw_values(layer))) == want
    for _, steps in result.notes:
        np.testing.assert_array_equal(steps, FIRST_STEP + np.arange(num_steps))


def test_a_stage_without_weights_is_not_too_far_ahead() -> None:
    """Once it ran all steps at once, because no gradient returns to it."""
    plain = [dense(), dense(NUM_CLASSES)]
    no_weights = DropoutLayer.Params().Set(keep_prob=0.8)
    layer = pipeline([no_weights, *plain], [1, 3], 1, schedule="1f1b")
    batches = _batches(12, 4)
    result, schedule = _at_once(layer, batches), _steps(layer).schedule(len(batches))
    times = [x.numpy() for x in result.times]
    rows = (
        (device, op, *row)
        for device, column in enumerate(schedule.columns)
        for op, row in zip(column, times[device].tolist(), strict=True)
    )
    assert 0 <= steps_ahead(Timeline.from_rows(rows))[0] <= MAX_STEPS_AHEAD


class EnergyLayer(BaseLayer):
    """Adds an auxiliary loss to the loss of its block."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddLoss("energy", tf.reduce_mean(x**2, axis=1))
        return x


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_size", [8, 7])
def test_losses_of_layers_count_by_the_weight_of_their_own_step(
    batch_size: int,
) -> None:
    all_cells = cells()
    all_cells.insert(1, EnergyLayer.Params())
    batches = _batches(3, batch_size)
    want = _one_by_one(pipeline(all_cells, 1, 4), batches)
    layer = pipeline(all_cells, [4, 8, 10], 4, schedule="local")
    result = _at_once(layer, batches)
    assert bytes_of((result.metrics, raw_values(layer))) == want


@pytest.mark.exhaustive
def test_only_credits_cross_the_boundary_of_a_block_backward() -> None:
    """One credit per step, which waits for no pass; and activations forward."""
    layer = pipeline(cells(), [3, 7, 9], 4, schedule="local")
    steps = _steps(layer)
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *_batches(3, 8))
    first = tf.constant(FIRST_STEP, tf.int64)
    steps.run(raw_values(layer), stacked, first, steps.tables(3))
    graph = steps.functions[-1].graph.as_graph_def()
    nodes = [n for f in graph.library.function for n in f.node_def]
    found = {
        (
            node.attr["send_device"].s[-1:] + node.attr["recv_device"].s[-1:],
            tf.as_dtype(node.attr["T"].type),
        )
        for node in [*graph.node, *nodes]
        if node.op == "Send"
    }
    forward = {(boundaries, tf.float32) for boundaries in (b"01", b"12")}
    assert found == forward | {(boundaries, tf.bool) for boundaries in (b"10", b"21")}


@pytest.mark.parametrize(
    ("params", "path", "got"),
    [
        ({"tied": {"cells_2/w": "cells_0/w"}}, "pipe.tied", ["pipe/cells_2/w"]),
        ({"before_tpl": [dense()]}, "pipe.before_tpl", [dense()]),
        ({"num_batch_shards": 2}, "pipe.num_batch_shards", 2),
    ],
)
def test_each_stage_updates_its_own_weights(
    params: dict[str, Any], path: str, got: Any
) -> None:
    with fails(path=path, got=got):
        _steps(pipeline([dense()] * 3, 3, 2, **params))
