from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    gradients,
    loss_fn,
    pipeline,
    plain_outputs,
    raw_values,
    state_batch,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _layer(num_micro_batches: int = 2) -> PipeliningLayer:
    """Returns two stages of a dense layer each."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    cells = [dense, dense.Copy().Set(output_dim=3)]
    return pipeline(cells, 2, num_micro_batches)


def _batch(batch_size: int = 4) -> tuple[list[tf.Tensor], NestedMap]:
    (x, _), targets = state_batch(batch_size)
    return [x], targets


def test_a_loss_without_gradient_is_refused() -> None:
    layer, (inputs, targets) = _layer(), _batch()

    def stopped(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        return loss_fn(tf.stop_gradient(logits), targets)

    with (
        ForwardContext(step=tf.constant(0, tf.int64)),
        fails(path="ComputeLoss", got="no gradient"),
    ):
        layer.ComputeGradients(raw_values(layer), inputs, targets, stopped)


class Unhashable:
    """A loss that equals others by value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    def __call__(self, logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        return loss_fn(logits, targets)


@pytest.mark.parametrize("loss", [None, "mean", Unhashable()])
def test_what_is_no_loss_function_is_refused(loss: Any) -> None:
    layer, (inputs, targets) = _layer(), _batch()
    given = raw_values(layer), inputs, targets, loss
    for run in (
        layer.ComputeGradients,
        layer.ComputeMetrics,
        layer.Diagnose,
        layer.PeakBytes,
    ):
        with ForwardContext(step=0), fails(path="pipe.loss_fn", got=loss):
            run(*(given if run != layer.PeakBytes else given[1:]))


def test_an_error_in_the_loss_names_it_and_what_came_in() -> None:
    def loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        return NestedMap(loss=(tf.reduce_mean(logits * targets.label), 1.0))

    layer, batch = _layer(), _batch()
    named = r"\bloss .*stage 1\b.*float32 \(2, 3\).*\blabel\Wint32 \(2,\).*\bMul\b"
    with pytest.raises(TypeError, match=named):
        gradients(layer, batch, loss=loss)


def test_metrics_without_a_loss_are_refused() -> None:
    layer, (inputs, targets) = _layer(), _batch()
    with ForwardContext(do_eval=True), fails(path="ComputeLoss", got=["other"]):
        layer.ComputeMetrics(
            layer.theta,
            inputs,
            targets,
            lambda x, t: NestedMap(other=loss_fn(x, t).loss),
        )


def test_gradients_are_zero_where_no_example_counts() -> None:
    layer, (inputs, targets) = _layer(), _batch()
    targets.weight = tf.zeros([4])
    result = gradients(layer, (inputs, targets))
    assert float(result.metrics.loss[0]) == 0.0
    for gradient in tf.nest.flatten(result.gradients):
        assert float(tf.reduce_max(tf.abs(gradient))) == 0.0


def test_a_micro_batch_without_weight_does_not_count() -> None:
    """Once its mean, 0 / 0, made the loss and all gradients NaN."""

    def loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        squares, weight = tf.reduce_sum(logits**2, -1), targets.weight
        total = tf.reduce_sum(weight)
        return NestedMap(loss=(tf.reduce_sum(weight * squares) / total, total))

    (x, _), targets = state_batch(4)
    targets.weight = tf.constant([1.0, 2.0, 0.0, 0.0])
    results = [
        gradients(
            pipeline([FCLayer.Params().Set(input_dim=6, output_dim=3)], 1, number),
            ([x], targets),
            loss=loss,
        )
        for number in (1, 2)
    ]
    one, two = ([x.metrics.loss, x.gradients.cells[0]] for x in results)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), one, two
    )


@pytest.mark.parametrize("dtype", [tf.int32, *map(exhaustive, [None, tf.float64])])
def test_weights_may_be_of_any_number_type(dtype: tf.DType | None) -> None:
    layer, (inputs, targets) = _layer(), _batch()

    def loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        weight = 2 if dtype is None else tf.constant(2, dtype)
        return NestedMap(loss=(tf.reduce_mean(logits**2), weight), half=(0.5, weight))

    metrics = gradients(layer, (inputs, targets), loss=loss).metrics
    assert float(metrics.loss[1]) == 4.0
    assert float(metrics.half[0]) == 0.5


def test_sums_are_wider_than_sixteen_bits() -> None:
    """In bfloat16 8 · 129 would not be 1032."""
    layer, (inputs, targets) = _layer(num_micro_batches=8), _batch(8)

    def loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        mean, weight = tf.cast(tf.reduce_mean(logits), tf.bfloat16), 129.0
        return NestedMap(loss=(mean, tf.constant(weight, tf.bfloat16)))

    metrics = gradients(layer, (inputs, targets), loss=loss).metrics
    assert float(metrics.loss[1]) == 8 * 129


def test_sixteen_bit_weights_keep_the_gradients_of_many_micro_batches() -> None:
    cell = FCLayer.Params().Set(input_dim=6, output_dim=3, dtype=tf.bfloat16)
    (x, _), targets = state_batch(256)
    found = []
    for num_micro_batches in (1, 256):
        layer = pipeline([cell], 1, num_micro_batches)
        result = gradients(layer, ([tf.cast(x, tf.bfloat16)], targets))
        assert result.gradients.cells[0].w.dtype == tf.bfloat16
        found.append(tf.cast(result.gradients.cells[0].w, tf.float32))
    scale = float(tf.reduce_max(tf.abs(found[0])))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=0.01 * scale)


def _weighted(weights_of: Callable) -> Callable:
    """Returns a loss whose weights are a function of the predictions."""

    def loss(x: tf.Tensor, targets: Any) -> NestedMap:
        weights = weights_of(x)
        total = tf.reduce_sum(weights)
        return NestedMap(loss=(tf.reduce_sum(x**2 * weights) / total, total))

    return loss


@pytest.mark.parametrize(
    ("weights_of", "num_micro_batches", "is_warned_of"),
    [
        (tf.sigmoid, 2, True),
        (tf.sigmoid, 1, False),
        (lambda x: tf.stop_gradient(tf.sigmoid(x)), 2, False),
        (lambda x: tf.cast(x > -9.0, tf.float32), 2, False),
    ],
)
def test_a_weight_of_predictions_is_warned_of(
    weights_of: Callable,
    num_micro_batches: int,
    is_warned_of: bool,
    warnings: pytest.LogCaptureFixture,
) -> None:
    """If it has a gradient, which more than one micro-batch leaves out."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
    layer, ([x, _], targets) = pipeline([dense], 1, num_micro_batches), state_batch(4)
    gradients(layer, ([x], targets), loss=_weighted(weights_of))
    assert len(warnings.messages) == is_warned_of
    assert all("the loss (stage 0)" in text for text in warnings.messages)


def test_no_gradient_goes_by_a_metrics_weight() -> None:
    """The mean is differentiated, also where its weight depends on the model."""
    loss = _weighted(tf.sigmoid)
    layer = pipeline([FCLayer.Params().Set(input_dim=6, output_dim=3)], 1, 1)
    (x, _), targets = state_batch(4)
    got = gradients(layer, ([x], targets), loss=loss).gradients.cells[0].w
    with tf.GradientTape() as tape:
        value = loss(plain_outputs(layer, [x]), targets).loss[0]
    want = tape.gradient(value, layer.vars.cells[0].w)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "metric",
    [
        lambda x: tf.reduce_mean(x),
        lambda x: (tf.reduce_mean(x, -1), 1.0),
        lambda x: (tf.reduce_mean(x), tf.ones([2])),
        lambda x: (tf.reduce_mean(x), 1.0, 1.0),
    ],
)
def test_what_is_no_pair_of_scalars_is_refused(metric: Any) -> None:
    layer, (inputs, targets) = _layer(), _batch()
    with fails(path="ComputeLoss.loss"):
        gradients(layer, (inputs, targets), loss=lambda x, t: NestedMap(loss=metric(x)))
