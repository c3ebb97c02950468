"""What a step sends between devices, by shapes; and that nothing else is sent."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import pipeline, raw_values

BATCH_SIZE = 8
DIMS = [5, 6, 7, 3]
FLOAT = 4


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    weight = tf.reduce_sum(tf.ones_like(targets))
    return NestedMap(loss=(tf.reduce_mean((outputs - targets) ** 2), weight))


def _layer(num_replicas: int = 1, **params: Any) -> PipeliningLayer:
    """A stage for each dense layer."""
    cells = [
        FCLayer.Params().Set(input_dim=a, output_dim=b)
        for a, b in zip(DIMS, DIMS[1:], strict=False)
    ]
    return pipeline(cells, len(cells), 4, num_replicas=num_replicas, **params)


def _batch() -> tuple[list[tf.Tensor], tf.Tensor]:
    return [tf.ones([BATCH_SIZE, DIMS[0]])], tf.ones([BATCH_SIZE, DIMS[-1]])


def _num_weights(stage: int) -> int:
    return (DIMS[stage] + 1) * DIMS[stage + 1]


@pytest.mark.parametrize(
    "params",
    [
        {"schedule": "gpipe"},
        {"schedule": "1f1b", "recompute": "never"},
        {"schedule": "zero_bubble"},
    ],
)
def test_values_go_forth_and_gradients_back(params: dict[str, Any]) -> None:
    layer = _layer(**params)
    devices, want = layer.devices, {}
    for k in range(2):
        size = BATCH_SIZE * DIMS[k + 1] * FLOAT
        want[devices[k], devices[k + 1]] = want[devices[k + 1], devices[k]] = size
    assert layer.BoundaryBytes(*_batch(), _loss) == want


@pytest.mark.parametrize(("num_parts", "num_replicas"), [(2, 2), (4, 2)])
def test_replicas_exchange_weights_and_totals(
    num_parts: int, num_replicas: int
) -> None:
    layer = _layer(num_replicas, num_parts=num_parts)
    found = layer.BoundaryBytes(*_batch(), _loss)
    want: Counter[tuple[str, str]] = Counter()
    for devices in layer.replicas:
        for k in range(2):
            size = BATCH_SIZE * DIMS[k + 1] * FLOAT // num_replicas
            want[devices[k], devices[k + 1]] += size
            want[devices[k + 1], devices[k]] += size
    for k, (home, other) in enumerate(zip(*layer.replicas, strict=True)):
        want[home, other] += _num_weights(k) * FLOAT
        want[other, home] += _num_weights(k) * FLOAT * num_parts // num_replicas
    assert found == want


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_nothing_else_crosses_in_the_emitted_graph(num_replicas: int) -> None:
    """Tensors that one device makes and another uses are totals, or single numbers."""
    layer = _layer(num_replicas)
    with ForwardContext(step=tf.constant(0, tf.int64)):
        layer.ComputeGradients(raw_values(layer), *_batch(), _loss)
    (function,) = layer.functions
    crossing: Counter[int] = Counter()
    for operation in function.graph.get_operations():
        for x in operation.inputs:
            ends = {x.op.device, operation.device}
            made_here = x.op.type not in ("Placeholder", "Const", "StridedSlice")
            if len(ends) == 2 and "" not in ends and made_here:
                crossing[x.shape.num_elements() or 1] += 1
    totals = [n for k in range(3) for n in (DIMS[k] * DIMS[k + 1], DIMS[k + 1])]
    sizes = {size for size in crossing if size > 1}
    assert sizes == (set(totals) if num_replicas > 1 else set())
