"""Blocks with losses of their own: each trained as if it were the whole model.

Shapes: B examples, D channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    NUM_CLASSES,
    gradients,
    loss_fn,
    pipeline,
    raw_values,
    state_batch,
)
from tests.pipeline.plain_model import assert_close, by_path, bytes_of

DIM = 6


def _dense(output_dim: int = DIM) -> InstantiableParams:
    p = FCLayer.Params().Set(input_dim=DIM, output_dim=output_dim)
    return p.Set(activation="TANH" if output_dim == DIM else "NONE")


def _local_loss(**params: Any) -> InstantiableParams:
    return LocalLossLayer.Params().Set(head=_dense(NUM_CLASSES), **params)


def _cells() -> list[InstantiableParams]:
    """Three blocks, in the middle one batch norm and dropout."""
    return [
        _dense(),
        _dense(),
        _local_loss(loss_name="first"),
        _dense(),
        BatchNormLayer.Params().Set(dim=DIM),
        DropoutLayer.Params().Set(keep_prob=0.8),
        _local_loss(loss_name="second"),
        _dense(),
        _dense(NUM_CLASSES),
    ]


BLOCKS = [(0, 3), (3, 7), (7, 9)]  # The cells of each.


def _batch(batch_size: int) -> tuple[list[tf.Tensor], NestedMap]:
    (x, _), targets = state_batch(batch_size)
    return [x], targets


def _plain_blocks(layer: PipeliningLayer, batch: Any) -> NestedMap:
    """By a tape for each block, that sees nothing of the others."""
    (x,), targets = batch
    metrics, found = NestedMap(), {}
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
            name = "" if end == len(layer.cells) else f"{cells[-1].params.loss_name}_"
            metrics.update({f"{name}{key}": pair for key, pair in block.items()})
            grads = tape.gradient(block.loss[0], weights)
            found |= {
                paths[w.ref()]: g.numpy() for w, g in zip(weights, grads, strict=True)
            }
            x = tf.stop_gradient(x)
    return NestedMap(metrics=metrics, gradients=found)


@pytest.mark.parametrize(("batch_size", "num_micro_batches"), [(8, 1)])
def test_each_block_is_trained_by_its_own_loss(
    batch_size: int, num_micro_batches: int
) -> None:
    layer, batch = pipeline(_cells(), 3, num_micro_batches), _batch(batch_size)
    result, plain = gradients(layer, batch), _plain_blocks(layer, batch)
    assert set(result.metrics) == set(plain.metrics)
    for name, pair in plain.metrics.items():
        np.testing.assert_allclose(result.metrics[name], pair, rtol=1e-5, atol=1e-6)
    assert_close(by_path(layer, result.gradients), plain.gradients, 3e-6)


WAYS: list[dict[str, Any]] = [
    {"splits": 2},
    {"splits": 4, "schedule": "1f1b", "recompute": "never"},
    {"splits": [3, 7, 9], "recompute": "except_last"},
    {"splits": [1, 2, 3, 6, 7, 8, 9]},
    {"splits": [1, 3, 7, 9], "schedule": "interleaved", "stages_per_device": 2},
    {"splits": 3, "schedule": "zero_bubble", "recompute": "never"},
    {"splits": [3, 7, 9], "schedule": "local", "recompute": "never"},
    {"splits": [1, 3, 5, 7, 9], "schedule": "local"},
]


@pytest.mark.parametrize("batch_size", [8, 7])
def test_bytes_do_not_depend_on_the_stages(batch_size: int) -> None:
    batch = _batch(batch_size)
    want = None
    for way in [{"splits": 1}, *WAYS]:
        others = {k: v for k, v in way.items() if k != "splits"}
        result = gradients(pipeline(_cells(), way["splits"], 4, **others), batch)
        got = bytes_of((result.gradients, result.metrics, result.accumulated))
        want = want or got
        assert got == want, way


def _sends(layer: PipeliningLayer) -> list[str]:
    """From device to device, all channels of the graph that was emitted last."""
    found = []
    graph = layer.functions[-1].graph.as_graph_def()
    nodes = [n for f in graph.library.function for n in f.node_def]
    for node in [*graph.node, *nodes]:
        if node.op == "Send":
            ends = node.attr["send_device"].s, node.attr["recv_device"].s
            found.append(" ".join(end.decode()[-1] for end in ends))
    return found


def test_no_gradient_crosses_the_boundary_of_a_block() -> None:
    layer = pipeline(_cells(), [3, 7, 9], 4)
    gradients(layer, _batch(8))
    assert sorted(set(_sends(layer))) == ["0 1", "1 2"]
    # Within a block they do.
    layer = pipeline(_cells(), [1, 3, 9], 4)
    gradients(layer, _batch(8))
    assert sorted(set(_sends(layer))) == ["0 1", "1 0", "1 2"]


def test_evaluation_knows_nothing_of_heads() -> None:
    layer, batch = pipeline(_cells(), 3, 4), _batch(8)
    x, targets = batch
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

    with pytest.raises(ValueError, match="blocks have their own, the weight of the"):
        gradients(pipeline(_cells(), 3, 4), _batch(8), loss=loss)
