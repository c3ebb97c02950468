"""A pipeline computes what the plain model computes, dropout included."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    plain_outputs,
    raw_values,
    state_batch,
    state_cells,
)
from tests.pipeline.plain_model import (
    accumulated_gradients,
    assert_same_bytes,
    assert_same_up_to_rounding,
    by_path,
    gradient_magnitudes,
    micro_batched_outputs,
    plain_gradients,
)
from tests.pipeline.small_transformer import (
    transformer_batch,
    transformer_cells,
    word_loss,
)
from tests.support.cases import exhaustive, fast_cases

SIZES = [(8, 4), (30, 4), *(exhaustive(8, number) for number in (1, 2, 8))]
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}


def _words(batch_size: int) -> tuple[list[tf.Tensor], NestedMap]:
    batch = transformer_batch(batch_size)
    return [batch.words, batch.mask], NestedMap(label=batch.label, mask=batch.mask)


MODELS: dict[str, Any] = {
    "transformer": (lambda: transformer_cells(2), _words, word_loss),
    "image": (lambda: image_cells(batch_norm=False), image_batch, loss_fn),
    "batch norm": (image_cells, image_batch, loss_fn),
}


def _pipeline(model: str, dtype: tf.DType, num_micro_batches: int) -> PipeliningLayer:
    cells = [p.Set(dtype=dtype, fprop_dtype=dtype) for p in MODELS[model][0]()]
    return pipeline(cells, 2, num_micro_batches)


@pytest.mark.parametrize(
    ("sizes", "dtype", "model"),
    [
        ((6, 4), "float64", "transformer"),
        *(
            exhaustive(*case)
            for case in itertools.product(
                [(8, 4), (30, 4)], TOLERANCES, ["transformer", "image"]
            )
        ),
    ],
)
def test_gradients_are_those_of_the_plain_model(
    sizes: tuple[int, int], dtype: str, model: str
) -> None:
    batch_size, num_micro_batches = sizes
    layer = _pipeline(model, tf.as_dtype(dtype), num_micro_batches)
    _, make_batch, loss = MODELS[model]
    batch = make_batch(batch_size)
    result = gradients(layer, batch, loss=loss)
    plain = plain_gradients(layer, batch, loss)
    assert result.metrics.keys() == plain.metrics.keys()
    for name, (mean, weight) in plain.metrics.items():
        np.testing.assert_allclose(result.metrics[name][0], mean, rtol=1e-6)
        assert float(result.metrics[name][1]) == pytest.approx(float(weight))
    assert_same_up_to_rounding(
        by_path(layer, result.gradients),
        plain.gradients,
        gradient_magnitudes(layer, batch, loss),
        TOLERANCES[dtype],
    )


FAST = [(2, "float32", "batch norm"), (4, "float32", "transformer")]


@pytest.mark.parametrize(
    ("num_micro_batches", "dtype", "model"),
    fast_cases(itertools.product([1, 2, 4, 8], TOLERANCES, MODELS), FAST),
)
def test_gradients_are_the_bytes_of_gradient_accumulation(
    num_micro_batches: int, dtype: str, model: str
) -> None:
    layer = _pipeline(model, tf.as_dtype(dtype), num_micro_batches)
    _, make_batch, loss = MODELS[model]
    batch = make_batch(8)
    assert_same_bytes(
        by_path(layer, gradients(layer, batch, loss=loss).gradients),
        accumulated_gradients(layer, batch, loss),
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_the_slopes_of_the_loss(model: str) -> None:
    """By central differences along directions in the space of all weights.

    The plain model has the same gradients, by a tape.
    """
    layer = _pipeline(model, tf.float64, 2)
    _, make_batch, loss = MODELS[model]
    inputs, targets = make_batch(4)
    result = gradients(layer, (inputs, targets), loss=loss)
    values = raw_values(layer)

    def loss_at(move: float, direction: NestedMap) -> float:
        moved = tf.nest.map_structure(
            lambda v, d: v if d is None else v + move * d, values, direction
        )
        with ForwardContext(step=tf.constant(3, tf.int64)):
            metrics = layer.ComputeMetrics(moved, inputs, targets, loss)
        return float(metrics.loss[0])

    for seed in range(3):
        direction = tf.nest.map_structure(
            functools.partial(_random_direction, seed), result.gradients
        )
        slope = _dot(result.gradients, direction)
        difference = loss_at(1e-5, direction) - loss_at(-1e-5, direction)
        assert difference / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-8)


def _random_direction(seed: int, gradient: tf.Tensor | None) -> tf.Tensor | None:
    if gradient is None:
        return None
    size = tf.size(gradient)
    return tf.random.stateless_normal(gradient.shape, [seed, size], dtype=tf.float64)


def _dot(a: NestedMap, b: NestedMap) -> float:
    pairs = zip(present(a), present(b), strict=True)
    return sum(float(tf.reduce_sum(x * y)) for x, y in pairs)


class MaskLayer(BaseLayer):
    """Appends its dropout mask as a column to the masks, [B, D, n]."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("dropout", DropoutLayer.Params().Set(keep_prob=0.5))

    def FProp(self, theta: NestedMap, masks: tf.Tensor) -> tf.Tensor:
        mask = self.dropout.FProp(theta.dropout, tf.ones_like(masks[:, :, 0]))
        return tf.concat([masks, mask[:, :, tf.newaxis]], -1)


@pytest.mark.parametrize(("batch_size", "num_micro_batches"), SIZES)
def test_masks_are_those_of_the_plain_model(
    batch_size: int, num_micro_batches: int
) -> None:
    layer = pipeline([MaskLayer.Params()] * 4, 2, num_micro_batches)
    inputs = [tf.zeros([batch_size, 7, 1])]
    step, first = tf.constant(3000, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(step=step, first_example=first):
        got = layer.FProp(layer.theta, *inputs).numpy()
        want = plain_outputs(layer, inputs).numpy()
    np.testing.assert_array_equal(got, want)
    columns = {got[:, :, i].tobytes() for i in range(1, 5)}
    assert len(columns) == 4, "each layer has its own"
    rows = {got[i].tobytes() for i in range(batch_size)}
    assert len(rows) == batch_size, "and each example"


@pytest.mark.parametrize("do_eval", [True, False])
def test_outputs_are_those_of_the_cells(do_eval: bool) -> None:
    layer, (inputs, _) = pipeline(image_cells(batch_norm=do_eval), 3, 2), image_batch(6)
    with ForwardContext(do_eval=do_eval, step=tf.constant(5, tf.int64)):
        got = layer.FProp(layer.theta, *inputs)
    want = micro_batched_outputs(layer, inputs, step=5, do_eval=do_eval)
    np.testing.assert_array_equal(got, want)


def test_structured_outputs_are_returned_whole() -> None:
    layer, (inputs, _) = pipeline(state_cells()[:3], 3, 2), state_batch(4)
    with ForwardContext(do_eval=True):
        got = layer.FProp(layer.theta, *inputs)
    want = micro_batched_outputs(layer, inputs, do_eval=True)
    assert isinstance(got, NestedMap)
    assert got.absent is None
    assert got.mask.dtype == tf.int32
    for name in ("hidden", "skipped", "mask"):
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize(("batch_size", "num_micro_batches"), [(9, 3), (7, 3)])
def test_metrics_of_an_evaluation_are_those_of_the_cells(
    batch_size: int, num_micro_batches: int
) -> None:
    layer = pipeline(image_cells(), 4, num_micro_batches)
    inputs, targets = image_batch(batch_size)
    with ForwardContext(do_eval=True):
        got = layer.ComputeMetrics(layer.theta, inputs, targets, loss_fn)
        want = loss_fn(plain_outputs(layer, inputs), targets)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
