"""The prologue computes what the plain model does, and what cells do."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    gradients,
    loss_fn,
    pipeline,
    plain_outputs,
    state_batch,
)
from tests.pipeline.plain_model import assert_close, by_path, bytes_of, plain_gradients
from tests.pipeline.prologue_models import (
    DIM,
    MODELS,
    NUM_TOKENS,
    TableLayer,
    dense,
    make_batch,
    make_token_batch,
    pipeline_of,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


class SignLayer(BaseLayer):
    """Passes on its inputs `[B, C]`, and which of them are positive."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x, x > 0


class WhereLayer(BaseLayer):
    """Doubles its inputs `[B, C]` where a condition holds."""

    def FProp(self, theta: NestedMap, x: tf.Tensor, doubles: tf.Tensor) -> tf.Tensor:
        return tf.where(doubles, 2 * x, x)


def test_cells_may_take_conditions_from_the_prologue() -> None:
    (x, _), targets = state_batch(4)
    first = FCLayer.Params().Set(input_dim=6, output_dim=3)
    before = [first, SignLayer.Params()]
    layer = pipeline([WhereLayer.Params()], 1, 2, before_tpl=before)
    _assert_plain(layer, ([x], targets), gradients(layer, ([x], targets)))


def test_a_local_loss_before_the_cells_is_refused() -> None:
    """It gets no targets there, and once trained nothing."""
    block = [dense(), LocalLossLayer.Params().Set(head=dense())]
    with fails(path="pipe.cell_tpl"):
        pipeline([dense()], 1, 2, before_tpl=block)


def _context(batch_dim: int = 0) -> ForwardContext:
    step, first = tf.constant(3, tf.int64), tf.constant(0, tf.int64)
    return ForwardContext(step=step, first_example=first, batch_dim=batch_dim)


def _trained(layer: PipeliningLayer) -> dict[str, tf.Variable]:
    return {k: v for k, v in layer.VariablePaths().items() if v.trainable}


def _assert_plain(
    layer: PipeliningLayer, batch: Any, result: NestedMap, loss: Any = loss_fn
) -> None:
    """Asserts that metrics and gradients equal a tape's around all layers."""
    plain = plain_gradients(layer, batch, loss)
    got = by_path(layer, result.gradients)
    assert_close(got, plain.gradients, 3e-6, least=1e-3)
    np.testing.assert_allclose(result.metrics.loss[0], plain.metrics.loss[0], 1e-6)


@functools.cache
def _trained_once(
    model: str, num_stages: int, size: int
) -> tuple[PipeliningLayer, NestedMap]:
    """Returns a pipeline, and its results for a mini-batch."""
    layer = pipeline_of(model, num_stages)
    return layer, gradients(layer, MODELS[model][2](size))


@pytest.mark.parametrize(
    ("model", "num_stages", "size"),
    [
        (model, *sizes) if sizes == fast else exhaustive(model, *sizes)
        for model, fast in zip(MODELS, [(2, 10), (2, 10), (1, 8), (2, 10)], strict=True)
        for sizes in [(1, 8), (2, 10)]
    ],
)
def test_gradients_are_those_of_the_plain_model(
    model: str, num_stages: int, size: int
) -> None:
    """With dropout, although the cells run micro-batches."""
    layer, result = _trained_once(model, num_stages, size)
    _assert_plain(layer, MODELS[model][2](size), result)


def test_examples_may_be_in_another_dimension() -> None:
    """Masks are those of the plain model, `[T, B, D]`."""
    layer = pipeline_of("sums", batch_dim=1)
    inputs = [tf.random.stateless_normal([5, 8, DIM], [3, 4])]
    batch = inputs, state_batch(8)[1]

    def last_logits(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        return loss_fn(logits[-1], targets)

    result = gradients(layer, batch, loss=last_logits)
    _assert_plain(layer, batch, result, last_logits)
    assert float(result.accumulated.before[0].sub[1].count) == 5 * 8


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("norm", {}),
        exhaustive("tokens", {}),
        exhaustive("twice", {}),
        ("twice", {"state_dtype": tf.bfloat16}),
    ],
)
def test_the_first_cells_of_a_whole_mini_batch_compute_the_same_bytes(
    model: str, params: dict[str, Any]
) -> None:
    """The divisor is a power of two, so the moment of the division does not matter."""
    norm = [dense(), BatchNormLayer.Params().Set(dim=DIM)], [dense()], make_batch
    before, cells, make = norm if model == "norm" else MODELS[model]
    inputs, targets = make(8)
    batch = inputs, NestedMap(targets, weight=tf.ones([8]))
    layer = pipeline(cells, 1, 1, before_tpl=before[:], **params)
    other = pipeline([*before, *cells], 1, 1, **params)
    for a, b in zip(*map(_variables, (layer, other)), strict=True):
        b.assign(a)
    results = [gradients(x, batch) for x in (layer, other)]
    assert bytes_of(results[0].gradients.before[0])
    for name in ("metrics", "gradients", "accumulated"):
        a, b = (bytes_of(result[name]) for result in results)
        assert a == b, name


def _variables(layer: PipeliningLayer) -> list[tf.Variable]:
    return list(layer.VariablePaths().values())


def test_the_number_of_stages_changes_no_byte() -> None:
    found = [bytes_of(_trained_once("sums", n, 10)[1]) for n in (1, 2)]
    assert found[0] == found[1]


def test_sums_are_of_the_whole_mini_batch() -> None:
    layer, result = _trained_once("sums", 2, 10)
    assert float(result.accumulated.before[0].sub[1].count) == 10
    with ForwardContext(step=tf.constant(0, tf.int64)) as context:
        layer.FProp(layer.theta, *make_batch(10)[0])
    assert float(context.accumulated["pipe/before_0/sub_1/count"]) == 10


@pytest.mark.parametrize("model", ["sums", exhaustive("maps")])
def test_an_evaluation_is_the_plain_models(model: str) -> None:
    layer, (inputs, targets) = pipeline_of(model), MODELS[model][2](8)
    with ForwardContext(do_eval=True):
        outputs = layer.FProp(layer.theta, *inputs)
        metrics = layer.ComputeMetrics(layer.theta, inputs, targets, loss_fn)
        plain = plain_outputs(layer, inputs)
    np.testing.assert_allclose(outputs, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics.loss[0], loss_fn(plain, targets).loss[0], 1e-6)


def test_untrained_weights_have_no_gradient() -> None:
    layer, result = _trained_once("twice", 2, 10)
    found = result.gradients.before[1]
    assert found.frozen is None
    np.testing.assert_array_equal(found.unused, [0.0, 0.0])
    assert found.shift.device == layer.devices[0]


@pytest.mark.parametrize(
    ("model", "in_function"),
    [
        *[("maps", True), ("twice", False)],
        *[exhaustive("maps", False), exhaustive("twice", True)],
    ],
)
def test_an_outer_tape_sees_weights_and_inputs(model: str, in_function: bool) -> None:
    layer, (inputs, _) = pipeline_of(model), MODELS[model][2](8)
    weights = list(_trained(layer).values())

    def taped(pipelined: bool) -> list[Any]:
        with _context(), tf.GradientTape() as tape:
            tape.watch(inputs[0])
            if pipelined:
                outputs = layer.FProp(layer.theta, *inputs)
            else:
                outputs = plain_outputs(layer, inputs)
            goal = tf.reduce_sum(outputs * tf.sin(outputs))
        return tape.gradient(goal, [*weights, inputs[0]], unconnected_gradients="zero")

    run = tf.function(taped, autograph=False) if in_function else taped
    for a, b in zip(run(True), taped(False), strict=True):
        scale = max(float(tf.reduce_max(tf.abs(b))), 1e-3)
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6 * scale)


@pytest.mark.parametrize(
    ("tied", "values"),
    [
        ("before_1/table", "read"),
        ("cells_1/table", "vars"),
        exhaustive("before_1/table", "vars"),
        exhaustive("cells_1/table", "read"),
    ],
)
def test_a_tied_weight_has_the_sum_of_its_gradients(tied: str, values: str) -> None:
    """Within the prologue, and between it and the cells of another stage."""
    before: list[InstantiableParams] = [TableLayer.Params()]
    cells = [dense(), TableLayer.Params()]
    if tied.startswith("before"):
        fit = FCLayer.Params().Set(input_dim=NUM_TOKENS, output_dim=DIM)
        before += [TableLayer.Params(), fit]
    layer = pipeline(cells, 2, 4, before_tpl=before, tied={tied: "before_0/table"})
    batch = make_token_batch(8)
    theta = layer.vars if values == "vars" else layer.theta
    with _context():
        result = layer.ComputeGradients(theta, *batch, loss_fn)
    assert f"pipe/{tied}" not in layer.VariablePaths()
    _assert_plain(layer, batch, result)
