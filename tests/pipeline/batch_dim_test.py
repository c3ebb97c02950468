"""Examples in dimension 1: the same as dimension 0 on transposed data.

Shapes: B examples, T times, D channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    NUM_CLASSES,
    gradients,
    loss_fn,
    pipeline,
    plain_outputs,
    state_batch,
)
from tests.pipeline.plain_model import assert_close, by_path, plain_gradients
from tests.support.cases import exhaustive


class MixTimesLayer(BaseLayer):
    """Sums over all times so far; [T, B, D] or [B, T, D]."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("time_dim", 1, "The dimension of times.")
        return p

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(x, self.params.time_dim)


def _layer(
    batch_dim: int, num_micro_batches: int, with_norm: bool = True
) -> PipeliningLayer:
    time_dim = 1 - batch_dim
    cells = [
        DropoutLayer.Params().Set(keep_prob=0.7),
        FCLayer.Params().Set(input_dim=6, output_dim=4, activation="TANH"),
        MixTimesLayer.Params().Set(time_dim=time_dim),
        *[BatchNormLayer.Params().Set(dim=4)] * with_norm,
        FCLayer.Params().Set(input_dim=4, output_dim=NUM_CLASSES),
    ]
    return pipeline(cells, 2, num_micro_batches, batch_dim=batch_dim)


def _last_logits(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return loss_fn(logits[:, -1], targets)


def _last_logits_by_time(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return loss_fn(logits[-1], targets)


LOSSES = [_last_logits, _last_logits_by_time]


def _batch(batch_dim: int, batch_size: int) -> Any:
    x = tf.random.stateless_normal([batch_size, 5, 6], [3, 4])
    x = tf.transpose(x, [1, 0, 2]) if batch_dim else x
    return [x], state_batch(batch_size)[1]


@pytest.mark.parametrize(
    ("batch_size", "num_micro_batches"),
    [exhaustive(8, 1), exhaustive(8, 4), (7, 3)],
)
def test_gradients_and_sums_are_those_of_transposed_data(
    batch_size: int, num_micro_batches: int
) -> None:
    results = []
    for batch_dim in (0, 1):
        layer = _layer(batch_dim, num_micro_batches)
        result = gradients(layer, _batch(batch_dim, batch_size), loss=LOSSES[batch_dim])
        results.append((by_path(layer, result.gradients), result))
    assert_close(results[1][0], results[0][0], 1e-5, least=1e-3)
    accumulators = [tf.nest.flatten(result.accumulated) for _, result in results]
    for a, b in zip(*accumulators, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_gradients_are_those_of_the_plain_model() -> None:
    """They follow from the test above and from `plain_model_test`."""
    layer, batch = _layer(1, 3, with_norm=False), _batch(1, 7)
    result = gradients(layer, batch, loss=_last_logits_by_time)
    plain = plain_gradients(layer, batch, _last_logits_by_time)
    assert_close(by_path(layer, result.gradients), plain.gradients, 1e-6)


def test_masks_are_those_of_transposed_data() -> None:
    """Outputs are in the order of the inputs."""
    masks = []
    for batch_dim, shape in ((0, [7, 5, 6]), (1, [5, 7, 6])):
        dropout = DropoutLayer.Params().Set(keep_prob=0.5)
        layer = pipeline([dropout] * 2, 2, 3, batch_dim=batch_dim)
        step, first = tf.constant(9, tf.int64), tf.constant(0, tf.int64)
        with ForwardContext(step=step, first_example=first, batch_dim=batch_dim):
            masks.append(layer.FProp(layer.theta, tf.ones(shape)).numpy())
            plain = plain_outputs(layer, [tf.ones(shape)])
        np.testing.assert_array_equal(masks[-1], plain)
    np.testing.assert_array_equal(masks[0], masks[1].transpose(1, 0, 2))
