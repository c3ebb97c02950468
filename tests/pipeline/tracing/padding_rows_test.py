"""Padding rows have no share in the sums and metrics of layers.

Shapes: b = 3 rows in each of M = 3 micro-batches of 7 examples, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import pipeline
from tests.support.cases import exhaustive
from tests.support.errors import fails

PATH = "FProp of the ReportingLayer at pipe/cells_0 (stage 0)"
NUM_CHANNELS = 3
NUM_EXAMPLES = 7
PIECES = [(0, 3), (3, 5), (5, 7)]


class ReportingLayer(BaseLayer):
    """Reports a metric, and perhaps a sum, of the outputs of a batch norm."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("metric", None, "From `[b, C]` to (mean, weight).")
        p.Define("total", None, "From `[b, C]` to [], or None.")
        p.Define("normalizes", True, "Whether there is a batch norm.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        norm = BatchNormLayer.Params().Set(dim=NUM_CHANNELS)
        if self.params.normalizes:
            self.CreateChild("norm", norm)
        if self.params.total is not None:
            self.RegisterAccumulator("total", [])

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        p = self.params
        y = self.norm.FProp(theta.norm, x) if p.normalizes else x
        if p.metric is not None:
            self.AddMetric("metric", *p.metric(y))
        if p.total is not None:
            self.Accumulate("total", p.total(y))
        return y


def _mask(x: tf.Tensor) -> tf.Tensor:
    """Returns 1 for examples, 0 for padding rows, `[b, 1]`."""
    mask = forward_context.current_context().row_weights(x)
    return tf.ones([x.shape[0], 1]) if mask is None else mask


def _mean(x: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    weight = tf.reduce_sum(mask)
    return tf.reduce_sum(x * mask) / weight, weight


def _of_rows(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rows = forward_context.current_context().example_rows(x)
    return tf.reduce_mean(rows), tf.reduce_sum(_mask(x))


def _with_padding(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Masks by row and by value."""
    mask = tf.cast(x > 0.0, x.dtype) * _mask(x)
    return _mean(tf.reshape(x, [-1]), tf.reshape(mask, [-1]))


def _chosen(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    counts = tf.logical_and(tf.abs(x) < 1.0, _mask(x) > 0.0)
    chosen = tf.where(counts, x, tf.zeros_like(x))
    weight = tf.reduce_sum(tf.cast(counts, x.dtype))
    return tf.math.divide_no_nan(tf.reduce_sum(chosen), weight), weight


def _gathered(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rows = tf.boolean_mask(x, _mask(x)[:, 0] > 0.0)
    return tf.reduce_max(rows), tf.reduce_sum(_mask(x))


def _by_product(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mask = _mask(x)
    weight = tf.reduce_sum(mask)
    return tf.reduce_sum(tf.matmul(mask, x, transpose_a=True)) / weight, weight


def _in_function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.function(lambda: _mean(x, _mask(x)), autograph=False)()


def _of_padding(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """By the opposite of a mask."""
    return _mean(x, 1.0 - tf.where(_mask(x) > 0.0, 0.0, 1.0))


MASKED: dict[str, Callable[[tf.Tensor], Any]] = {
    "sum over count": lambda x: _mean(x, _mask(x)),
    "rows": _of_rows,
    "with padding": _with_padding,
    "chosen": _chosen,
    "gathered": _gathered,
    "product of matrices": _by_product,
    "in a function": _in_function,
    "opposite": _of_padding,
}


def _one_more(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Masks the one and adds the other."""
    return tf.reduce_mean(x * _mask(x) + x), tf.reduce_sum(_mask(x))


def _by_the_number(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """All rows, though over the number of examples."""
    weight = tf.reduce_sum(_mask(x))
    return tf.reduce_sum(x) / weight, weight


UNMASKED: dict[str, Callable[[tf.Tensor], Any]] = {
    "mean": lambda x: (tf.reduce_mean(x), tf.reduce_sum(_mask(x))),
    "weight": lambda x: (_mean(x, _mask(x))[0], tf.reduce_sum(tf.ones_like(x))),
    "weight by values": lambda x: (
        _mean(x, _mask(x))[0],
        tf.reduce_sum(tf.cast(x > 0.0, x.dtype)),
    ),
    "constant weight": lambda x: (_mean(x, _mask(x))[0], tf.constant(3.0)),
    "one more": _one_more,
    "by the number": _by_the_number,
    "gathered by values": lambda x: (
        tf.reduce_max(tf.gather(x, tf.argmax(x))),
        tf.reduce_sum(_mask(x)),
    ),
}


def _pipeline(**params: Any) -> PipeliningLayer:
    return pipeline([ReportingLayer.Params().Set(**params)], 1, 3)


def _inputs() -> tf.Tensor:
    return tf.random.stateless_normal([NUM_EXAMPLES, NUM_CHANNELS], [1, 2])


def _loss(outputs: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs), tf.constant(1.0)))


def _metric(layer: PipeliningLayer, do_eval: bool = False) -> list[float]:
    with ForwardContext(do_eval=do_eval):
        metrics = layer.ComputeMetrics(layer.theta, [_inputs()], None, _loss)
    return [float(x) for x in metrics.metric]


DO_EVAL_NORMALIZES = [
    *[(False, True), (True, False)],
    *[exhaustive(False, False), exhaustive(True, True)],
]


@pytest.mark.parametrize(("do_eval", "normalizes"), DO_EVAL_NORMALIZES)
@pytest.mark.parametrize("name", MASKED)
def test_masked_metrics_are_those_of_the_examples(
    name: str, normalizes: bool, do_eval: bool
) -> None:
    layer = _pipeline(metric=MASKED[name], normalizes=normalizes)
    pairs = []
    for first, end in PIECES:
        with ForwardContext(do_eval=do_eval) as context:
            layer.cells[0](_inputs()[first:end])
        pairs += context.metric_pairs["metric"]
    means, weights = np.array(pairs).T
    want = np.average(means, weights=weights), weights.sum()
    np.testing.assert_allclose(_metric(layer, do_eval), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("do_eval", "normalizes"), DO_EVAL_NORMALIZES)
@pytest.mark.parametrize("name", UNMASKED)
def test_unmasked_metrics_are_refused(
    name: str, normalizes: bool, do_eval: bool
) -> None:
    """After a batch norm too, which itself depends on the number of examples."""
    layer = _pipeline(metric=UNMASKED[name], normalizes=normalizes)
    with fails(path=PATH, got="metric 'metric' over all rows"):
        _metric(layer, do_eval)


@pytest.mark.parametrize("normalizes", [False, True])
def test_sums_must_be_masked_too(normalizes: bool) -> None:
    def masked(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * _mask(x))

    def run(total: Callable) -> float:
        layer = _pipeline(total=total, normalizes=normalizes)
        with ForwardContext(step=tf.constant(0, tf.int64)) as context:
            layer.FProp(layer.theta, _inputs())
        return float(context.accumulated["pipe/cells_0/total"])

    want = float(tf.reduce_sum(_inputs()))
    if normalizes:  # The mean of each micro-batch is 0.
        want = 0.0
    assert run(masked) == pytest.approx(want, abs=1e-5)
    with fails(path=PATH, got="accumulator 'total' over all rows"):
        run(tf.reduce_sum)
