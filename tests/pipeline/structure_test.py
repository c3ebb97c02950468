"""Traces, the size of the emitted graph, and its independence of data."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from tests.pipeline.example_layers import (
    CountingLayer,
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    raw_values,
    state_batch,
    state_cells,
)
from tests.pipeline.plain_model import bytes_of
from tests.pipeline.simulation.random_schedules import shuffled
from tests.support.cases import exhaustive


def _counting(
    num_layers: int, num_micro_batches: int, num_stages: int = 2, **params: Any
) -> PipeliningLayer:
    """Returns a pipeline that has run once; counts traces from 0."""
    CountingLayer.traces = 0
    cells = [CountingLayer.Params()] * num_layers
    layer = pipeline(cells, num_stages, num_micro_batches, **params)
    gradients(layer, _ones(2 * num_micro_batches))
    return layer


@functools.cache
def _two_layers() -> PipeliningLayer:
    return _counting(2, 2)


def _ones(batch_size: int) -> Any:
    label = tf.zeros([batch_size], tf.int32)
    targets = NestedMap(label=label, weight=tf.ones([batch_size]))
    return [tf.ones([batch_size, 3])], targets


def _graph(layer: PipeliningLayer) -> Any:
    (function,) = layer.functions
    return function.graph.as_graph_def()


@pytest.mark.parametrize("schedule", [exhaustive("gpipe"), "zero_bubble"])
def test_alike_layers_are_traced_once(schedule: str) -> None:
    """In two stages, of which the first does not compute its outputs again."""
    num_functions = []
    for num_layers in (4, 12):
        layer = _counting(num_layers, 2, schedule=schedule)
        assert CountingLayer.traces == 1
        num_functions.append(len(_graph(layer).library.function))
    assert len(set(num_functions)) == 1


@pytest.mark.parametrize("num_stages", [4, exhaustive(6)])
def test_alike_stages_share_the_functions_of_their_operations(num_stages: int) -> None:
    """The first stage gives no gradient of its input, and the last has the loss."""
    library = _graph(_counting(3 * num_stages, 2, num_stages)).library.function
    names = [function.signature.name for function in library]
    assert sum("stage_backward" in name for name in names) == 3
    calls = [node for function in library for node in function.node_def]
    of_layers = [x for x in calls if "__inference_backward" in str(x.attr["f"])]
    assert len(of_layers) == 3 * 3 + 1


@pytest.mark.exhaustive
def test_variables_are_read_by_one_node_per_layer_and_give_the_same_bytes() -> None:
    layer = pipeline(state_cells(), 2, 2)
    inputs, targets = state_batch(4)

    def run(theta: NestedMap) -> Any:
        with ForwardContext(step=tf.constant(3, tf.int64)):
            result = layer.ComputeGradients(theta, inputs, targets, loss_fn)
        return [result.gradients, result.metrics, result.accumulated]

    read = tf.function(lambda: run(layer.vars)).get_concrete_function()
    nodes = [node.op for node in read.graph.as_graph_def().node]
    assert nodes.count("ReadVariableOp") <= layer.num_stages
    assert bytes_of(run(raw_values(layer))) == bytes_of(read())


def test_another_run_of_the_same_shapes_traces_nothing() -> None:
    layer = _two_layers()
    CountingLayer.traces = 0
    gradients(layer, _ones(4), step=2)
    assert CountingLayer.traces == 0


def test_the_graph_does_not_grow_with_the_number_of_micro_batches() -> None:
    sizes = []
    for layer in (_two_layers(), _counting(2, 16)):
        graph = _graph(layer)
        nodes = [len(function.node_def) for function in graph.library.function]
        sizes.append((len(graph.node), len(nodes), sum(nodes)))
    assert sizes[0] == sizes[1]


def test_each_device_runs_one_loop() -> None:
    layer = _counting(4, 2, 4, schedule="interleaved", stages_per_device=2)
    loops = [node.device for node in _graph(layer).node if node.op == "While"]
    assert loops == layer.devices[:2]


ORDERS = [
    gpipe(3, 4),
    one_f_one_b(3, 4),
    *(shuffled(gpipe(3, 4), random.Random(i)) for i in range(3)),
]


def test_the_order_of_operations_is_data() -> None:
    """Another order builds nothing, and computes the same bytes."""
    assert len(set(ORDERS)) == len(ORDERS)
    layer, batch = pipeline(image_cells(), 3, 4, recompute="never"), image_batch(8)
    first = gradients(layer, batch)
    for order in ORDERS:
        other = gradients(layer, batch, schedule=order)
        tf.nest.map_structure(np.testing.assert_array_equal, other, first)
    assert len(layer.functions) == 1


def test_times_are_those_of_the_operations_in_their_order() -> None:
    """Each waits, starts and ends in order, and starts before its dependents.

    It may end after them, because its messages may arrive before its clock is read.
    """
    layer = pipeline([CountingLayer.Params()] * 3, 3, 4)
    inputs, targets = _ones(8)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(raw_values(layer), inputs, targets, loss_fn)
    started: dict[Op, float] = {}
    for column, times in zip(layer.schedule.columns, result.times, strict=True):
        rows = times.numpy()
        assert rows.shape == (len(column), 3)
        assert (np.diff(rows.reshape(-1)) >= 0).all()
        started.update(zip(column, rows[:, 1], strict=True))
    for op, start in started.items():
        needs = layer.schedule.dependencies(op)
        assert all(started[needed] <= start for needed in needs)
    assert {op.kind for op in started} == {Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD}


class PoolLayer(BaseLayer):
    """A layer without stash and weights."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(x, [1])


def test_operations_without_results_have_times_in_order() -> None:
    """Once such a recomputation ended before it had started."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
    cells = [dense, PoolLayer.Params()]
    layer, targets = pipeline(cells, 2, 2), {"label": tf.zeros([4], tf.int32)}

    def loss(outputs: tf.Tensor, targets: Any) -> NestedMap:
        return NestedMap(loss=(tf.reduce_mean(outputs), tf.constant(2.0)))

    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(
            raw_values(layer), [tf.ones([4, 5, 6])], targets, loss
        )
    for times in result.times:
        assert (np.diff(times.numpy().reshape(-1)) >= 0).all()
