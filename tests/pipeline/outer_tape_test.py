"""A gradient tape around PipeliningLayer.FProp sees the plain model."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    image_batch,
    image_cells,
    pipeline,
    plain_outputs,
    state_batch,
    state_cells,
)
from tests.support.cases import exhaustive


def _taped(layer: PipeliningLayer, inputs: list[Any], pipelined: bool) -> Any:
    """Returns outputs, and gradients for weights and inputs of a function of them."""
    weights = [v for v in tf.nest.flatten(layer.vars) if v.trainable]
    step, first = tf.constant(3, tf.int64), tf.constant(0, tf.int64)
    with ForwardContext(step=step, first_example=first), tf.GradientTape() as tape:
        tape.watch(inputs)
        if pipelined:
            outputs = layer.FProp(layer.theta, *inputs)
        else:
            outputs = plain_outputs(layer, inputs)
        goal = tf.reduce_sum(outputs * tf.sin(outputs))
    return outputs, tape.gradient(goal, [*weights, inputs[0]])


@pytest.mark.parametrize(
    ("model", "num_micro_batches", "in_function"),
    [
        ("image", 3, True),
        ("state", 2, False),
        *(
            exhaustive(*case)
            for case in itertools.product(["image", "state"], [2, 3], [False, True])
            if case not in [("image", 3, True), ("state", 2, False)]
        ),
    ],
)
def test_gradients_are_those_of_the_plain_model(
    model: str, num_micro_batches: int, in_function: bool
) -> None:
    make = {"image": image_batch, "state": state_batch}[model]
    cells = image_cells(batch_norm=False) if model == "image" else state_cells()
    layer, (inputs, _) = pipeline(cells, 2, num_micro_batches), make(8)
    run = tf.function(_taped, autograph=False) if in_function else _taped
    outputs, got = run(layer, inputs, True)
    plain, want = _taped(layer, inputs, False)
    np.testing.assert_allclose(outputs, plain, rtol=1e-5, atol=1e-6)
    for a, b in zip(got, want, strict=True):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale)


def test_sums_reach_the_outer_context() -> None:
    layer, (inputs, _) = pipeline(image_cells(), 2, 2), image_batch(8)
    with ForwardContext(step=tf.constant(0, tf.int64)) as context:
        layer.FProp(layer.theta, *inputs)
    accumulators = context.accumulated
    assert float(accumulators["pipe/cells_0/sub_1/count"]) == 8 * 5 * 4
    layer.PostTrainingStepUpdate(layer.AccumulatedTree(accumulators))


@functools.cache
def _image_layer() -> PipeliningLayer:
    return pipeline(image_cells(batch_norm=False), 2, 2)


def test_a_single_gradient_may_be_requested() -> None:
    layer, (inputs, _) = _image_layer(), image_batch(8)
    one = layer.vars.cells[0].sub[0].w
    with ForwardContext(step=tf.constant(0, tf.int64)), tf.GradientTape() as tape:
        outputs = layer.FProp(layer.theta, *inputs)
    assert tape.gradient(outputs, one).shape == one.shape


@pytest.mark.parametrize("of_inputs", [True, exhaustive(False)])
def test_a_gradient_of_a_gradient_is_refused(of_inputs: bool) -> None:
    """Once a penalty on gradients silently had none."""
    layer, (inputs, _) = _image_layer(), image_batch(8)
    weight = layer.vars.cells[0].sub[0].w
    source = inputs[0] if of_inputs else weight
    context = ForwardContext(step=tf.constant(0, tf.int64))
    with context, tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            goal = tf.reduce_sum(layer.FProp(layer.theta, *inputs) ** 2)
        penalty = tf.reduce_sum(inner.gradient(goal, source) ** 2)
        total = goal + penalty
    with pytest.raises(UserValueError, match=r"\bPipeliningLayer\b"):
        outer.gradient(total, weight)


@pytest.mark.parametrize("in_function", [False, True])
def test_forward_mode_is_refused(in_function: bool) -> None:
    """Once the error was IndexError."""
    dense = FCLayer.Params().Set(input_dim=3, output_dim=2)
    layer, x = pipeline([dense], 1, 2), tf.ones([4, 3])
    run = tf.function(layer.FProp, autograph=False) if in_function else layer.FProp
    theta = layer.theta
    with (
        tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)),
        pytest.raises(UserValueError, match=r"\bPipeliningLayer\b"),
    ):
        run(theta, x)
