"""Blocks with losses of their own are each trained like a whole model.

Shapes: B examples, D channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    NUM_CLASSES,
    gradients,
    loss_fn,
    pipeline,
    raw_values,
)
from tests.pipeline.local_blocks import BLOCKS, batch, cells, dense, local_loss
from tests.pipeline.plain_model import assert_same_bytes, by_path, bytes_of
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _plain_blocks(layer: PipeliningLayer, data: Any) -> NestedMap:
    """Returns metrics and gradients from a separate tape for each block.

    As in the pipeline, gradients are divided by the weight of the loss at last.
    """
    (x,), targets = data
    metrics = NestedMap()
    found: dict[str, np.ndarray] = {}
    paths = {v.ref(): path for path, v in layer.VariablePaths().items()}
    with ForwardContext(step=tf.constant(3, tf.int64), first_example=0):
        for begin, end in BLOCKS:
            cells = layer.cells[begin:end]
            variables = tf.nest.flatten([cell.vars for cell in cells])
            weights = [v for v in variables if v.trainable]
            with tf.GradientTape() as tape:
                outputs = x
                for cell in cells:
                    if isinstance(cell, LocalLossLayer):
                        outputs = cell.head.FProp(cell.head.theta, outputs)
                        continue
                    outputs = x = cell.FProp(cell.theta, outputs)
                block = loss_fn(outputs, targets)
                mean, weight = block.loss
                total = mean * weight
            name = "" if end == len(layer.cells) else f"{cells[-1].params.loss_name}_"
            metrics.update({f"{name}{key}": pair for key, pair in block.items()})
            found |= {
                paths[w.ref()]: (gradient / weight).numpy()
                for w, gradient in zip(
                    weights, tape.gradient(total, weights), strict=True
                )
            }
            x = tf.stop_gradient(x)
    return NestedMap(metrics=metrics, gradients=found)


def test_each_block_is_trained_by_its_own_loss() -> None:
    layer, data = pipeline(cells(), 3, num_micro_batches=1), batch(8)
    result, plain = gradients(layer, data), _plain_blocks(layer, data)
    assert set(result.metrics) == set(plain.metrics)
    for name, pair in plain.metrics.items():
        np.testing.assert_allclose(result.metrics[name], pair, rtol=1e-5, atol=1e-6)
    assert_same_bytes(by_path(layer, result.gradients), plain.gradients)


OPTIONS: list[dict[str, Any]] = [
    {"splits": 2},
    {"splits": 4, "schedule": "1f1b", "recompute": "never"},
    {"splits": [3, 7, 9], "recompute": "except_last"},
    {"splits": [1, 2, 3, 6, 7, 8, 9]},
    {"splits": [1, 3, 7, 9], "schedule": "interleaved", "stages_per_device": 2},
    {"splits": 3, "schedule": "zero_bubble", "recompute": "never"},
    {"splits": [3, 7, 9], "schedule": "local", "recompute": "never"},
    {"splits": [1, 3, 5, 7, 9], "schedule": "local"},
]


@pytest.mark.parametrize(
    ("batch_size", "chosen"), [exhaustive(8, OPTIONS), (7, OPTIONS[6:7])]
)
def test_bytes_do_not_depend_on_the_stages(
    batch_size: int, chosen: list[dict[str, Any]]
) -> None:
    data = batch(batch_size)
    want = None
    for options in [{"splits": 1}, *chosen]:
        others = {k: v for k, v in options.items() if k != "splits"}
        result = gradients(pipeline(cells(), options["splits"], 4, **others), data)
        got = bytes_of((result.gradients, result.metrics, result.accumulated))
        want = want or got
        assert got == want, options


def _crossing(layer: PipeliningLayer) -> list[bytes]:
    """Returns gradients that cross blocks: in evaluation, and of a tape."""
    (x,), targets = batch(8)
    with ForwardContext(do_eval=True):
        result = layer.ComputeGradients(layer.vars, [x], targets, loss_fn)
    with ForwardContext(step=tf.constant(3, tf.int64)), tf.GradientTape() as tape:
        goal = tf.reduce_sum(layer.FProp(layer.vars, x) ** 2)
    return bytes_of((result.gradients, tape.gradient(goal, layer.vars.cells[0].w)))


def test_gradients_cross_blocks_that_have_no_loss() -> None:
    """Once stages waited for each other forever."""
    blocks = [dense(), local_loss(), dense(), dense(NUM_CLASSES)]
    want = _crossing(pipeline(blocks, 1, 4))
    assert _crossing(pipeline(blocks, [2, 3, 4], 4, schedule="local")) == want


def test_no_gradient_of_complex_numbers_passes() -> None:
    head = FnLayer.Params().Set(fn=tf.math.real)
    layer = LocalLossLayer.Params().Set(name="local", head=head).Instantiate()
    spectrum = tf.complex(tf.ones([2, 3]), tf.ones([2, 3]))
    loss = NestedMap(loss=(tf.constant(0.0), tf.constant(1.0)))
    with ForwardContext() as context, tf.GradientTape() as tape:
        context.compute_loss = lambda _: loss
        tape.watch(spectrum)
        outputs = tf.math.real(layer(spectrum))
    assert tape.gradient(outputs, spectrum) is None


def _sends(layer: PipeliningLayer) -> list[str]:
    """Returns all channels of the last graph, as pairs of devices."""
    found = []
    graph = layer.functions[-1].graph.as_graph_def()
    nodes = [n for f in graph.library.function for n in f.node_def]
    for node in [*graph.node, *nodes]:
        if node.op == "Send":
            boundaries = node.attr["send_device"].s, node.attr["recv_device"].s
            found.append(" ".join(end.decode()[-1] for end in boundaries))
    return found


@pytest.mark.parametrize(
    ("splits", "sends"),
    [
        exhaustive([3, 7, 9], ["0 1", "1 2"]),
        ([1, 3, 9], ["0 1", "1 0", "1 2"]),  # The first block has two stages.
    ],
)
def test_no_gradient_crosses_the_boundary_of_a_block(
    splits: list[int], sends: list[str]
) -> None:
    """Within a block gradients do cross."""
    layer = pipeline(cells(), splits, 4)
    gradients(layer, batch(8))
    assert sorted(set(_sends(layer))) == sends


def _peak(num_blocks: int, num_micro_batches: int, schedule: str) -> int:
    """Returns the peak bytes of all devices; micro-batches have 4 examples."""
    block = [dense(), dense(), local_loss()]
    layer = pipeline(
        [*(block * num_blocks)[:-1], dense(NUM_CLASSES)],
        [3 * (k + 1) for k in range(num_blocks)],
        num_micro_batches,
        schedule=schedule,
        recompute="never",
    )
    inputs, targets = batch(4 * num_micro_batches)
    return max(layer.PeakBytes(inputs, targets, loss_fn))


@pytest.mark.exhaustive
def test_memory_grows_with_neither_devices_nor_micro_batches() -> None:
    assert len({_peak(k, m, "local") for k, m in [(2, 2), (3, 8)]}) == 1
    assert _peak(2, 2, "gpipe") < _peak(2, 8, "gpipe")


def test_evaluation_ignores_heads() -> None:
    layer = pipeline(cells(), 3, 4)
    x, targets = batch(8)
    with ForwardContext(do_eval=True):
        metrics = layer.ComputeMetrics(raw_values(layer), x, targets, loss_fn)
        outputs = layer.FProp(raw_values(layer), *x)
        want = x[0]
        for cell in layer.cells:
            if not isinstance(cell, LocalLossLayer):
                want = cell.FProp(cell.theta, want)
    assert set(metrics) == {"loss", "accuracy"}
    np.testing.assert_allclose(outputs, want, rtol=1e-6, atol=1e-6)


def test_the_weight_of_the_loss_must_follow_from_the_targets() -> None:
    def loss(outputs: tf.Tensor, targets: NestedMap) -> NestedMap:
        mean, weight = loss_fn(outputs, targets).loss
        return NestedMap(loss=(mean, weight * tf.reduce_mean(outputs)))

    with fails(path="ComputeLoss.loss"):
        gradients(pipeline(cells(), 3, 4), batch(8), loss=loss)
