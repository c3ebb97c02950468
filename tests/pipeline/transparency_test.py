"""The pipelined model is the plain model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.forward_context import ForwardContext
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

MODELS: dict[str, tuple[Callable[[], list[InstantiableParams]], Callable]] = {
    "batch norm and dropout": (image_cells, image_batch),
    "maps, integers, None": (state_cells, state_batch),
    "bfloat16": (lambda: state_cells(tf.bfloat16), state_batch),
}
SPLITS = [2, 4, [1, 6], [1, 2, 5, 6]]


@pytest.mark.parametrize("num_micro_batches", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_trained_bytes_do_not_depend_on_the_stages(
    model: str, num_micro_batches: int
) -> None:
    make_cells, make_batch = MODELS[model]
    one = _trained(pipeline(make_cells(), 1, num_micro_batches), make_batch)
    for splits in SPLITS if num_micro_batches > 1 else SPLITS[1::2]:
        other = _trained(pipeline(make_cells(), splits, num_micro_batches), make_batch)
        assert one.keys() == other.keys(), "paths know nothing of stages"
        for path, value in one.items():
            assert value == other[path], (path, splits)


@pytest.mark.parametrize("model", ["no batch norm", "maps, integers, None"])
def test_gradients_agree_with_the_plain_model(model: str) -> None:
    """Two stages of four micro-batches against all cells on the whole batch."""
    cells, make_batch = (
        (state_cells(), state_batch)
        if model in MODELS
        else (image_cells(batch_norm=False), image_batch)
    )
    layer, batch = pipeline(cells, 2, 4), make_batch(8)
    result = gradients(layer, batch)
    loss, expected = _plain_gradients(layer, batch)
    np.testing.assert_allclose(result.metrics.loss[0], loss, rtol=1e-6)
    for path, want in expected.items():
        got = _by_path(layer, result.gradients)[path]
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * scale, err_msg=path)


def test_batch_norm_normalises_by_micro_batch() -> None:
    """Against the plain model run on each micro-batch, losses weighted."""
    layer, (inputs, targets) = pipeline(image_cells(), 3, 2), image_batch(8)
    result = gradients(layer, (inputs, targets))
    halves = [
        ([inputs[0][half]], targets.Transform(operator.itemgetter(half)))
        for half in (slice(0, 4), slice(4, 8))
    ]
    parts = [
        _plain_gradients(layer, half, first_example=4 * i)
        for i, half in enumerate(halves)
    ]
    weights = [float(tf.reduce_sum(half[1].weight)) for half in halves]
    for path, got in _by_path(layer, result.gradients).items():
        want = np.average([part[1][path] for part in parts], 0, weights)
        scale = max(np.abs(want).max(), 1e-3)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * scale, err_msg=path)


def test_moving_averages_are_those_of_the_whole_mini_batch() -> None:
    means = []
    for num_micro_batches in (1, 4):
        layer = pipeline(image_cells(), 2, num_micro_batches)
        result = gradients(layer, image_batch(8))
        layer.PostTrainingStepUpdate(result.accumulated)
        first = layer.vars.cells[0].sub[1]
        means.append((first.moving_mean.numpy(), first.moving_variance.numpy()))
    np.testing.assert_allclose(means[0][0], means[1][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(means[0][1], means[1][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("do_eval", [True, False])
def test_outputs_are_those_of_the_cells(do_eval: bool) -> None:
    layer, (inputs, _) = pipeline(image_cells(batch_norm=do_eval), 3, 2), image_batch(6)
    step, first = tf.constant(5, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(do_eval=do_eval, step=step, first_example=first):
        got = layer.FProp(layer.theta, *inputs)
        want = plain_outputs(layer, inputs)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_structured_outputs_come_back_whole() -> None:
    layer, (inputs, _) = pipeline(state_cells()[:3], 3, 2), state_batch(4)
    with ForwardContext(do_eval=True):
        got, want = layer.FProp(layer.theta, *inputs), plain_outputs(layer, inputs)
    assert isinstance(got, NestedMap)
    assert got.absent is None
    assert got.mask.dtype == tf.int32
    for name in ("hidden", "skipped", "mask"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)


def test_metrics_of_an_evaluation_are_those_of_the_cells() -> None:
    layer, (inputs, targets) = pipeline(image_cells(), 4, 3), image_batch(9)
    with ForwardContext(do_eval=True):
        got = layer.ComputeMetrics(layer.theta, inputs, targets, loss_fn)
        want = loss_fn(plain_outputs(layer, inputs), targets)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)


def _trained(layer: PipeliningLayer, make_batch: Any) -> dict[str, bytes]:
    """All variables after four steps with momentum, as bytes by path."""
    variables = layer.VariablePaths()
    momenta = {path: tf.zeros_like(v) for path, v in variables.items()}

    @tf.function(autograph=False)
    def run(step: tf.Tensor, inputs: Any, targets: Any) -> NestedMap:
        with ForwardContext(step=step):
            return layer.ComputeGradients(raw_values(layer), inputs, targets, loss_fn)

    for step in range(4):
        result = run(tf.constant(step, tf.int64), *make_batch(8, seed=step))
        for path, gradient in _by_path(layer, result.gradients).items():
            momenta[path] = 0.9 * momenta[path] + gradient
            variables[path].assign_sub(0.1 * momenta[path])
        layer.PostTrainingStepUpdate(result.accumulated)
    return {path: v.numpy().tobytes() for path, v in variables.items()}


def _by_path(layer: PipeliningLayer, tree: NestedMap) -> dict[str, tf.Tensor]:
    paths = {v.ref(): path for path, v in layer.VariablePaths().items()}
    pairs = zip(tf.nest.flatten(layer.vars), tf.nest.flatten(tree), strict=True)
    return {paths[v.ref()]: g for v, g in pairs if g is not None}


def _plain_gradients(
    layer: PipeliningLayer, batch: Any, first_example: int = 0
) -> tuple[float, dict[str, Any]]:
    """Loss and gradients by an ordinary tape around the cells."""
    inputs, targets = batch
    trained = {k: v for k, v in layer.VariablePaths().items() if v.trainable}
    first = tf.constant(first_example, tf.int64)
    with (
        ForwardContext(step=tf.constant(3, tf.int64), first_example=first),
        tf.GradientTape() as tape,
    ):
        loss = loss_fn(plain_outputs(layer, inputs), targets).loss[0]
    found = tape.gradient(loss, list(trained.values()))
    return float(loss), dict(zip(trained, (g.numpy() for g in found), strict=True))
