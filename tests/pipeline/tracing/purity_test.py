"""What is computed twice, on whichever device, must be a function of its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import gradients, loss_fn, pipeline, state_batch


class RandomLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.dropout(x, 0.5)


class HiddenRandomLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0, 0] > 0, lambda: tf.nn.dropout(x, 0.5), lambda: x)


class CapturingLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([3]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x * self.vars.w


class ConstantLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._shift = tf.constant([1.0, 2.0, 3.0])

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x + self._shift


class OwnVariableLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._shift = tf.Variable(1.0)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x + self._shift


class WritingLayer(BaseLayer):
    """Counts its calls in a variable; within a branch if `hidden`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("hidden", False, "Whether in a branch.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("n", WeightParams([], None, tf.float32, False))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        def count() -> tf.Tensor:
            self.vars.n.assign_add(1.0)
            return x

        return tf.cond(x[0, 0] > 0, count, lambda: x) if self.params.hidden else count()


class ForgetfulLayer(BaseLayer):
    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.RegisterAccumulator("seen", [])

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x


@pytest.mark.parametrize(
    ("cell", "pattern"),
    [
        (RandomLayer.Params(), r"\['RandomUniform'\].*\bAccumulate\b"),
        (HiddenRandomLayer.Params(), r"\['RandomUniform'\]"),
        (CapturingLayer.Params(), r"\['pipe/cells_1/w'\].*\btheta\b"),
        (ConstantLayer.Params(), r"float32 \(3,\).*\bCreateVariable\b"),
        (OwnVariableLayer.Params(), r"\b__init__\b.*\bCreateVariable\b"),
        (ForgetfulLayer.Params(), r"\bpipe/cells_1\b.*\['seen'\]"),
        (
            WritingLayer.Params(),
            r"\['AssignAddVariableOp'\].*\['pipe/cells_1/n'\].*\bAccumulate\b",
        ),
        (WritingLayer.Params().Set(hidden=True), "'AssignAddVariableOp'"),
    ],
)
def test_a_layer_that_is_no_pure_function_is_refused(
    cell: InstantiableParams, pattern: str
) -> None:
    """The error names layer, stage and what it did."""
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    layer = pipeline([dense, cell, dense.Copy()], [1, 3], 2)
    place = rf"\b{cell.cls.__name__}\b.*\bpipe/cells_1 .*stage 1\b"
    batch = state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    with pytest.raises(ValueError, match=f"{place}.*{pattern}"):
        gradients(layer, batch)


def _random(x: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(x) * tf.random.uniform([]), 1.0))


def _accumulating(x: tf.Tensor, targets: Any) -> NestedMap:
    forward_context.current().accumulate("seen", tf.reduce_sum(x))
    return loss_fn(x, targets)


def _capturing(x: tf.Tensor, targets: Any) -> NestedMap:
    with tf.init_scope():
        scale = tf.Variable(2.0)
    return NestedMap(loss=(tf.reduce_mean(x * scale), 1.0))


def _writing(x: tf.Tensor, targets: Any) -> NestedMap:
    with tf.init_scope():
        calls = tf.Variable(0.0)
    calls.assign_add(1.0)
    return loss_fn(x, targets)


def test_a_loss_takes_weights_from_no_layer() -> None:
    layer = pipeline([FCLayer.Params().Set(input_dim=6, output_dim=3)], 1, 2)
    (x, _), targets = state_batch(4)

    def loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
        return loss_fn(logits + layer.vars.cells[0].b, targets)

    named = r"\bloss .*stage 0\b.*\['pipe/cells_0/b'\]"
    with pytest.raises(ValueError, match=named):
        gradients(layer, ([x], targets), loss=loss)


@pytest.mark.parametrize(
    ("loss", "pattern"),
    [
        (_random, r"\bloss .*stage 0\b.*\['RandomUniform'\].*\bmetrics\b"),
        (_capturing, r"\bloss .*stage 0\b.*\b__init__\b.*\bCreateVariable\b"),
        (_writing, r"\bloss .*stage 0\b.*\['AssignAddVariableOp'\]"),
        (_accumulating, r"\bloss\b.*\['seen'\].*\bmetrics\b"),
    ],
)
def test_a_loss_that_is_no_pure_function_is_refused(loss: Any, pattern: str) -> None:
    layer = pipeline([FCLayer.Params().Set(input_dim=6, output_dim=3)], 1, 2)
    (x, _), targets = state_batch(4)
    with pytest.raises(ValueError, match=pattern):
        gradients(layer, ([x], targets), loss=loss)


def test_a_loss_may_use_random_numbers_of_the_context() -> None:
    """By example: the same for any number of micro-batches."""

    def noisy(x: tf.Tensor, targets: Any) -> NestedMap:
        noise = forward_context.current().uniform("noise", 1, x.shape)
        return NestedMap(loss=(tf.reduce_mean(x * noise), x.shape[0]))

    losses = []
    for num_micro_batches in (1, 4):
        dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
        layer = pipeline([dense], 1, num_micro_batches)
        (x, _), targets = state_batch(8)
        result = gradients(layer, ([x], targets), loss=noisy)
        losses.append(result.metrics.loss[0])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


class CheckingLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x, "not finite")


def test_operations_that_only_report_are_allowed() -> None:
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    layer, batch = pipeline([dense, CheckingLayer.Params()], 2, 2), state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    assert gradients(layer, batch).gradients.cells[0].w is not None
