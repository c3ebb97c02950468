"""A mini-batch that M does not divide: padding rows change nothing.

Shapes: B examples, M micro-batches.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    NUM_CLASSES,
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    state_batch,
)
from tests.pipeline.plain_model import assert_close, by_path, bytes_of, plain_gradients
from tests.support.cases import exhaustive
from tests.support.errors import fails

# (B, M) -> the examples of each micro-batch.
PIECES = {
    (8, 2): [(0, 4), (4, 8)],
    (7, 3): [(0, 3), (3, 5), (5, 7)],
    (5, 4): [(0, 2), (2, 3), (3, 4), (4, 5)],
}


def _image_pipeline(num_stages: int, num_micro_batches: int) -> PipeliningLayer:
    cells = [p.Set(dtype=tf.float64, fprop_dtype=tf.float64) for p in image_cells()]
    return pipeline(cells, num_stages, num_micro_batches)


def _image_batch(batch_size: int) -> tuple[list[tf.Tensor], NestedMap]:
    (image,), targets = image_batch(batch_size)
    return [tf.cast(image, tf.float64)], targets


def _part(batch: Any, first: int, end: int) -> Any:
    inputs, targets = batch
    part = operator.itemgetter(slice(first, end))
    return [part(x) for x in inputs], targets.Transform(part)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [(7, 3), (8, 2), (5, 4)], ids=str)
def test_each_micro_batch_is_normalised_by_its_examples_alone(
    sizes: tuple[int, int],
) -> None:
    """Like the plain model on each, with weighted losses and summed accumulators."""
    layer, batch = _image_pipeline(2, sizes[1]), _image_batch(sizes[0])
    result = gradients(layer, batch)
    parts = [_part(batch, *piece) for piece in PIECES[sizes]]
    plain = [
        plain_gradients(layer, part, first_example=first)
        for part, (first, _) in zip(parts, PIECES[sizes], strict=True)
    ]
    weights = [targets.weight.numpy().sum(dtype=float) for _, targets in parts]
    want = {
        path: np.average([p.gradients[path] for p in plain], 0, weights)
        for path in plain[0].gradients
    }
    # Before a batch norm the gradient of a bias is only rounding.
    assert_close(by_path(layer, result.gradients), want, 1e-12, least=1e-2)
    accumulators = {
        path: sum(p.context.accumulated[path] for p in plain)
        for path in plain[0].context.accumulated
    }
    for got, total in zip(
        tf.nest.flatten(result.accumulated),
        tf.nest.flatten(layer.AccumulatedTree(accumulators)),
        strict=True,
    ):
        np.testing.assert_allclose(got, total, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "sizes", [(7, 3), *map(exhaustive, [(8, 1), (8, 2), (5, 4)])], ids=str
)
def test_moving_averages_move_by_the_moments_of_the_whole_mini_batch(
    sizes: tuple[int, int],
) -> None:
    layer, batch = _image_pipeline(2, sizes[1]), _image_batch(sizes[0])
    layer.PostTrainingStepUpdate(gradients(layer, batch).accumulated)
    convolution, norm = layer.cells[0].sub[:2]
    with ForwardContext():
        values = convolution(batch[0][0]).numpy().reshape(-1, 4)
    moving = norm.vars
    np.testing.assert_allclose(moving.moving_mean, values.mean(0) / 2, 1e-12)
    want = (1 + values.var(0)) / 2
    np.testing.assert_allclose(moving.moving_variance, want, 1e-12)


def test_bytes_are_those_of_one_stage() -> None:
    found = []
    for splits in (1, [1, 5, 6]):
        result = gradients(pipeline(image_cells(), splits, 3), image_batch(7))
        results = result.metrics, result.gradients, result.accumulated
        found.append(bytes_of(results))
    assert found[0] == found[1]


@pytest.mark.exhaustive
def test_outputs_of_an_evaluation_are_those_of_one_stage() -> None:
    found = []
    for splits in (1, [1, 5, 6]):
        layer, (inputs, _) = pipeline(image_cells(), splits, 3), image_batch(7)
        with ForwardContext(do_eval=True):
            found.append(bytes_of(layer.FProp(layer.theta, *inputs)))
    assert found[0] == found[1]


def _examples(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` with zeros in padding rows."""
    weights = forward_context.current_context().row_weights(x)
    return x if weights is None else x * weights


class SumLayer(BaseLayer):
    """Sums and counts its inputs, with or without regard to padding rows."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("regards", (), "Sums with regard: total, number, mean, weight.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.RegisterAccumulator("total", [])
        self.RegisterAccumulator("number", [])
        self.CreateVariable("w", WeightParams([NUM_CLASSES, NUM_CLASSES]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        def total(name: str, values: tf.Tensor) -> tf.Tensor:
            regards = name in self.params.regards
            return tf.reduce_sum(_examples(values) if regards else values)

        ones = tf.ones(x.shape[0])
        self.Accumulate("total", total("total", x))
        self.Accumulate("number", total("number", ones))
        mean = total("mean", x) / total("mean", ones)
        self.AddMetric("mean", mean, total("weight", ones))
        self.AddMetric("largest_weight", tf.reduce_max(theta.w), tf.constant(1.0))
        return tf.matmul(x, theta.w)


ALL = ("total", "number", "mean", "weight")


def _sums(batch_size: int, regards: Any) -> NestedMap:
    layer = pipeline([SumLayer.Params().Set(regards=regards)], 1, 3)
    inputs = [tf.ones([batch_size, NUM_CLASSES])]
    return gradients(layer, (inputs, image_batch(batch_size)[1]))


@pytest.mark.parametrize(("batch_size", "regards"), [(6, ()), (6, ALL), (7, ALL)])
def test_sums_and_metrics_are_of_examples_alone(
    batch_size: int, regards: tuple[str, ...]
) -> None:
    result = _sums(batch_size, regards)
    accumulators, (mean, weight) = result.accumulated.cells[0], result.metrics.mean
    assert float(accumulators.total) == batch_size * NUM_CLASSES
    assert float(accumulators.number) == batch_size
    assert (float(mean), float(weight)) == (NUM_CLASSES, batch_size)


@pytest.mark.parametrize(
    ("missing", "wrong"),
    [
        ("total", "accumulator 'total'"),
        ("number", "accumulator 'number'"),
        ("mean", "metric 'mean'"),
        ("weight", "metric 'mean'"),
    ],
)
def test_each_sum_must_regard_padding_rows(missing: str, wrong: str) -> None:
    """If there are padding rows; even if the other sums do."""
    regards = tuple(name for name in ALL if name != missing)
    path = "FProp of the SumLayer at pipe/cells_0 (stage 0)"
    with fails(path=path, got=f"{wrong} over all rows"):
        _sums(7, regards)


class MergingLayer(BaseLayer):
    """Merges pairs of rows, and asks which are examples."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        pairs = tf.reshape(x, [-1, 2 * x.shape[1]])
        _examples(pairs)
        return tf.repeat(pairs, 2, axis=0)[:, :NUM_CLASSES]


def test_merged_rows_have_no_row_weights() -> None:
    layer = pipeline([MergingLayer.Params()], 1, 2)
    even, ragged = (
        ([tf.ones([size, NUM_CLASSES])], image_batch(size)[1]) for size in (8, 7)
    )
    gradients(layer, even)
    with fails() as info:
        gradients(layer, ragged)
    assert "pipe/cells_0 " in str(info.value)


def test_a_loss_sees_no_padding_rows() -> None:
    """For instance one that counts rows."""

    def loss(x: tf.Tensor, targets: NestedMap) -> NestedMap:
        number = tf.cast(tf.shape(x)[0], tf.float32)
        return NestedMap(loss=(tf.reduce_mean(x**2), number))

    layer = pipeline(image_cells(batch_norm=False), 2, 4)
    batch = image_batch(6)
    result = gradients(layer, batch, loss=loss)
    assert float(result.metrics.loss[1]) == 6.0
    want = plain_gradients(layer, batch, loss).gradients
    assert_close(by_path(layer, result.gradients), want, 1e-6)


class WholeLayer(BaseLayer):
    """Returns the logits, and a value of the whole micro-batch."""

    def FProp(self, theta: NestedMap, logits: tf.Tensor) -> NestedMap:
        return NestedMap(logits=logits, mean=tf.reduce_mean(logits, 0))


def _loss_of_both(outputs: NestedMap, targets: NestedMap) -> NestedMap:
    loss, weight = loss_fn(outputs.logits, targets).loss
    return NestedMap(loss=(loss + tf.reduce_sum(outputs.mean**2), weight))


def test_outputs_without_rows_are_refused_when_ragged() -> None:
    """Padding rows could not be left out of them."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=NUM_CLASSES)
    layer = pipeline([dense, WholeLayer.Params()], 2, 2)
    even, ragged = (([x], targets) for (x, _), targets in map(state_batch, (8, 9)))
    gradients(layer, even, loss=_loss_of_both)
    with fails(path="ComputeLoss") as info:
        gradients(layer, ragged, loss=_loss_of_both)
    assert info.value.got.startswith("float32 (5, 3), float32 (3,)")
