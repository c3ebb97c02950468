"""Losses and metrics that layers add, anywhere in the pipeline.

Shapes: B examples, D channels.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
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
    raw_values,
    state_batch,
)
from tests.pipeline.plain_model import assert_close, by_path, bytes_of, plain_gradients
from tests.support.cases import exhaustive, fast_cases
from tests.support.errors import fails

DIM = 6


class LossLayer(BaseLayer):
    """A dense layer with dropout that adds losses and metrics."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("loss", "energy", "Name of its loss.")
        p.Define("metric", "mean_square", "Name of its metric.")
        p.Define("times", 1, "Number of times that the loss is added.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        dense = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM, activation="TANH")
        self.CreateChild("dense", dense)
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.8))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        p = self.params
        y = self.dropout.FProp(theta.dropout, self.dense.FProp(theta.dense, x))
        energies = tf.reduce_sum(y**3, -1)
        for _ in range(p.times):
            self.AddLoss(p.loss, energies / p.times)
        self.AddMetric(p.metric, *_mean_square(y))
        return y


class SquareLossLayer(BaseLayer):
    """Adds a loss in its own dtype, and passes on its inputs."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddLoss("square", tf.reduce_sum(tf.cast(x, self.fprop_dtype) ** 2, -1))
        return x


def _mean_square(y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean over the rows that are examples, and their number."""
    weights = forward_context.current_context().row_weights(y)
    if weights is None:
        weights = tf.ones([y.shape[0], 1], y.dtype)
    number = tf.reduce_sum(weights)
    return tf.reduce_sum(tf.reduce_mean(y**2, -1, keepdims=True) * weights) / number, (
        number
    )


def _cells(**last: Any) -> list[InstantiableParams]:
    """Returns cells with losses of one name in several stages, and of another."""
    return [
        FCLayer.Params().Set(input_dim=DIM, output_dim=DIM),
        LossLayer.Params(),
        LossLayer.Params(),
        LossLayer.Params().Set(**{"loss": "other", "times": 2, **last}),
        FCLayer.Params().Set(input_dim=DIM, output_dim=NUM_CLASSES),
    ]


def _batch(batch_size: int) -> Any:
    """Returns examples with random weights, one of them 0."""
    (x, _), targets = state_batch(batch_size)
    weight = targets.weight.numpy()
    weight[1] = 0.0
    return [x], NestedMap(targets, weight=tf.constant(weight))


@functools.cache
def _trained(
    batch_size: int, num_micro_batches: int, **last: Any
) -> tuple[PipeliningLayer, NestedMap]:
    """Returns two stages that add losses of one name, and their results.

    Weight gradients are deferred, and nothing is recomputed. For `last` see `_cells`.
    """
    cells, schedule = _cells(**last), "zero_bubble"
    layer = pipeline(cells, [2, 5], num_micro_batches, schedule=schedule)
    return layer, gradients(layer, _batch(batch_size))


MORE = [(8, 1), (8, 2), (8, 4), (8, 8), (30, 4)]
SIZES = [*(exhaustive(*sizes) for sizes in MORE), (7, 3)]


@pytest.mark.parametrize(("batch_size", "num_micro_batches"), SIZES)
def test_gradients_are_of_the_main_loss_and_the_means_of_the_others(
    batch_size: int, num_micro_batches: int
) -> None:
    layer, result = _trained(batch_size, num_micro_batches)
    plain = plain_gradients(layer, _batch(batch_size))
    assert_close(by_path(layer, result.gradients), plain.gradients, 2e-6)
    for name, total in plain.context.losses.items():
        mean, weight = result.metrics[name]
        np.testing.assert_allclose(mean, total / batch_size, rtol=1e-5, atol=1e-6)
        assert float(weight) == batch_size
    np.testing.assert_allclose(result.metrics.loss[0], plain.metrics.loss[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("splits", "schedule"),
    [(1, "gpipe"), exhaustive(2, "zero_bubble"), exhaustive(5, "1f1b")],
)
def test_bytes_do_not_depend_on_the_stages(splits: int, schedule: str) -> None:
    layer = pipeline(_cells(), splits, 3, schedule=schedule)
    got, (_, want) = gradients(layer, _batch(7)), _trained(7, 3)
    found = [bytes_of((result.gradients, result.metrics)) for result in (got, want)]
    assert found[0] == found[1]


def test_losses_of_one_name_may_be_of_two_dtypes() -> None:
    """Once the sums of two cells were added as they were."""
    cells = [FCLayer.Params().Set(input_dim=DIM, output_dim=NUM_CLASSES)]
    cells += [SquareLossLayer.Params().Set(dtype=x) for x in (tf.float32, tf.float64)]
    layer, batch = pipeline(cells, 2, 2), _batch(8)
    result, plain = gradients(layer, batch), plain_gradients(layer, batch)
    assert_close(by_path(layer, result.gradients), plain.gradients, 2e-6)
    mean, _ = result.metrics["square"]
    np.testing.assert_allclose(mean, plain.context.losses["square"] / 8, rtol=1e-6)


@pytest.mark.exhaustive
def test_auxiliary_losses_count_where_the_main_loss_has_no_examples() -> None:
    """The main loss then has weight 0 and gradient 0."""
    for splits, num_micro_batches in ((2, 4), (2, 3)):
        layer, (inputs, targets) = (
            pipeline(_cells(), splits, num_micro_batches),
            _batch(8),
        )
        targets.weight = tf.zeros([8])
        result = gradients(layer, (inputs, targets))
        want = plain_gradients(layer, (inputs, targets)).gradients
        assert_close(by_path(layer, result.gradients), want, 2e-6)
        assert np.abs(want["pipe/cells_0/w"]).max() > 1e-3
        assert float(result.metrics.loss[0]) == 0.0


def _metrics(layer: PipeliningLayer, batch: Any, do_eval: bool) -> NestedMap:
    inputs, targets = batch
    with ForwardContext(do_eval=do_eval, step=tf.constant(3, tf.int64)):
        return layer.ComputeMetrics(raw_values(layer), inputs, targets, loss_fn)


@pytest.mark.parametrize(
    ("batch_size", "num_micro_batches", "do_eval"),
    [(8, 4, True), (7, 3, False), exhaustive(8, 4, False), exhaustive(7, 3, True)],
)
def test_runs_without_gradients_report_them_too(
    batch_size: int, num_micro_batches: int, do_eval: bool
) -> None:
    layer, batch = pipeline(_cells(), 2, num_micro_batches), _batch(batch_size)
    metrics = _metrics(layer, batch, do_eval)
    step, first = tf.constant(3, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(do_eval=do_eval, step=step, first_example=first) as context:
        plain_outputs(layer, batch[0])
    assert context.losses.keys() == {"energy", "other"}
    for name, total in context.losses.items():
        mean = total / batch_size
        np.testing.assert_allclose(metrics[name][0], mean, rtol=1e-5, atol=1e-6)
    assert metrics.keys() == {"loss", "accuracy", "energy", "other", "mean_square"}


class WeighedMetricLayer(BaseLayer):
    """A layer with a metric: a column's mean, weighted by another column."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        weight = tf.reduce_sum(x[:, 1])
        mean = tf.math.divide_no_nan(tf.reduce_sum(x[:, 0] * x[:, 1]), weight)
        self.AddMetric("column", mean, weight)
        self.AddMetric("column", mean + 1.0, 3.0 * weight)
        return x


@pytest.mark.parametrize("num_micro_batches", [4, *map(exhaustive, [1, 2])])
def test_metrics_are_means_by_their_weights(num_micro_batches: int) -> None:
    cells = [WeighedMetricLayer.Params()] * 2
    x = np.abs(state_batch(8)[0][0].numpy())
    targets = state_batch(8)[1]
    dense = FCLayer.Params().Set(input_dim=DIM, output_dim=NUM_CLASSES)
    layer = pipeline([*cells, dense], 3, num_micro_batches)
    mean, weight = gradients(layer, ([tf.constant(x)], targets)).metrics.column
    want = np.average(x[:, 0], weights=x[:, 1]) + 0.75
    assert float(mean) == pytest.approx(want, rel=1e-5)
    assert float(weight) == pytest.approx(8.0 * x[:, 1].sum(), rel=1e-5)


def test_a_metric_is_not_trained() -> None:
    """It depends on weights, also on an earlier layer's, and still trains none."""
    _, of_one_name = _trained(7, 3)
    _, of_another = _trained(7, 3, metric="of_another_name")
    assert bytes_of(of_one_name.gradients) == bytes_of(of_another.gradients)


def _by_predictions(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    """Returns a loss whose weight depends on the predictions."""
    weights = tf.nn.softmax(logits)[:, 0] * targets.weight
    return loss_fn(logits, NestedMap(targets, weight=weights))


def test_a_weight_from_predictions_is_refused_with_auxiliary_losses() -> None:
    layer, batch = pipeline(_cells(), 2, 4), _batch(8)
    with fails(path="ComputeLoss.loss"):
        gradients(layer, batch, loss=_by_predictions)
    assert "energy" in _metrics(layer, batch, do_eval=True)


def test_a_weight_from_predictions_is_allowed_without_auxiliary_losses() -> None:
    dense = FCLayer.Params().Set(input_dim=DIM, output_dim=NUM_CLASSES)
    layer, batch = pipeline([dense], 1, 4), _batch(8)
    assert float(gradients(layer, batch, loss=_by_predictions).metrics.loss[1]) > 0.0


WRONG_NAMES = [
    {"loss": "loss"},
    {"loss": "accuracy"},
    {"loss": "mean_square"},
    {"metric": "loss"},
    {"metric": "accuracy"},
]


@pytest.mark.parametrize(
    ("last", "trains"),
    fast_cases(
        itertools.product(WRONG_NAMES, [True, False]),
        [({"loss": "loss"}, True), ({"metric": "accuracy"}, False)],
    ),
)
def test_names_of_losses_and_metrics_must_be_unique(
    last: dict[str, str], trains: bool
) -> None:
    layer, batch = pipeline(_cells(**last), 2, 4), _batch(8)
    (name,) = last.values()
    with fails(got=[name]):
        gradients(layer, batch) if trains else _metrics(layer, batch, True)


def test_a_gradient_through_fprop_is_refused_with_auxiliary_losses() -> None:
    layer, (inputs, _) = pipeline(_cells(), 2, 4), _batch(8)
    with ForwardContext(step=tf.constant(0, tf.int64)), tf.GradientTape() as tape:
        outputs = layer.FProp(layer.theta, *inputs)
    with fails(path="pipe"):
        tape.gradient(outputs, layer.vars.cells[0].w)


class OddLossLayer(BaseLayer):
    """Adds a loss of some shape."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("shape", [], "Shape of the loss.")
        return p

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddLoss("odd", tf.ones(self.params.shape))
        return x


@pytest.mark.parametrize("batch_size", [8, 7])
@pytest.mark.parametrize("shape", [[], [1], [DIM]])
def test_losses_are_of_examples(shape: list[int], batch_size: int) -> None:
    layer = pipeline([OddLossLayer.Params().Set(shape=shape), *_cells()], 2, 4)
    with pytest.raises(UserValueError, match=r"'odd'.*\bpipe/cells_0\b"):
        gradients(layer, _batch(batch_size))
