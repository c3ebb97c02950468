"""A function that runs twice, on any device, must depend on its arguments alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import gradients, loss_fn, pipeline, state_batch
from tests.support.cases import exhaustive
from tests.support.errors import fails


class UsersLayer(BaseLayer):
    """A layer of two functions: `prepare` of the layer, `run` of layer and input."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("prepare", lambda layer: None, "Called at the end of __init__.")
        p.Define("run", None, "What FProp computes.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.params.prepare(self)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.params.run(self, x)


def _layer(run: Callable, **params: Callable) -> InstantiableParams:
    return UsersLayer.Params().Set(run=run, **params)


def _shifting(shift: Callable) -> InstantiableParams:
    def prepare(layer: Any) -> None:
        layer.shift = shift()

    return _layer(lambda layer, x: x + layer.shift, prepare=prepare)


def _random(layer: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.dropout(x, 0.5)


def _count(layer: Any, x: tf.Tensor) -> tf.Tensor:
    layer.vars.n.assign_add(1.0)
    return x


def _with_counter(layer: Any) -> None:
    layer.CreateVariable("n", WeightParams([], None, tf.float32, trainable=False))


def _in_branch(run: Callable) -> Callable:
    return lambda layer, x: tf.cond(x[0, 0] > 0, lambda: run(layer, x), lambda: x)


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        (_layer(_random), "random_uniform/RandomUniform']"),
        (_layer(_in_branch(_random)), "['RandomUniform']"),
        (
            _layer(
                lambda layer, x: x * layer.vars.w,
                prepare=lambda layer: layer.CreateVariable("w", WeightParams([3])),
            ),
            "['pipe/cells_1/w']",
        ),
        (_shifting(lambda: tf.Variable(1.0)), "a variable or table"),
        (
            _layer(
                lambda layer, x: x,
                prepare=lambda layer: layer.RegisterAccumulator("seen", []),
            ),
            "['seen']",
        ),
        (
            _layer(_count, prepare=_with_counter),
            "['AssignAddVariableOp'] on variables ['pipe/cells_1/n']",
        ),
        (_layer(_in_branch(_count), prepare=_with_counter), "['AssignAddVariableOp']"),
    ],
    ids=[
        *("random", "random in branch", "captured weight", "variable"),
        *("no share", "writing", "writing in branch"),
    ],
)
def test_a_layer_that_is_no_pure_function_is_refused(
    cell: InstantiableParams, got: str
) -> None:
    """The error names layer, stage and what it did."""
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    layer = pipeline([dense, cell, dense.Copy()], [1, 3], 2)
    batch = state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    with fails() as info:
        gradients(layer, batch)
    assert "UsersLayer at pipe/cells_1 (stage 1)" in str(info.value)
    assert got in str(info.value.got)
    assert info.value.hint


def _with_gradient(gradient: Callable) -> Callable:
    """Returns a layer's `run`: an identity with this gradient function."""

    def run(layer: Any, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def pass_on(x: tf.Tensor) -> Any:
            return tf.identity(x), lambda change: gradient(layer, change)

        return pass_on(x)

    return run


def _with_scale(layer: Any) -> None:
    layer.scale = tf.Variable(0.5)


def _asserting(layer: Any, change: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_none_equal(change, change, message="asserted")
    return change


def _run_between_dense(cell: InstantiableParams, **params: Any) -> NestedMap:
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    batch = state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    return gradients(pipeline([dense, cell, dense.Copy()], 2, 2, **params), batch)


@pytest.mark.parametrize(
    ("gradient", "got"),
    [
        (lambda layer, change: layer.scale * change, "a variable or table"),
        (_random, "random_uniform/RandomUniform']"),
    ],
)
def test_a_gradient_function_that_is_not_pure_is_refused(
    gradient: Callable, got: str
) -> None:
    with fails() as info:
        _run_between_dense(_layer(_with_gradient(gradient), prepare=_with_scale))
    assert "UsersLayer at pipe/cells_1" in str(info.value)
    assert got in str(info.value.got)


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble"])
def test_assertions_of_a_gradient_function_run(schedule: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="asserted"):
        _run_between_dense(_layer(_with_gradient(_asserting)), schedule=schedule)


@pytest.mark.parametrize("size", [exhaustive(1), 500])
def test_a_layer_may_keep_tensors(size: int) -> None:
    """Each its own, also where layers are alike."""

    def scaling(scale: tf.Tensor) -> InstantiableParams:
        def prepare(layer: Any) -> None:
            layer.scale = scale

        return _layer(lambda layer, x: x * tf.reduce_sum(layer.scale), prepare=prepare)

    found = []
    for make in (tf.fill, np.full):
        cells = [
            scaling(make([size], np.float32(scale / size))) for scale in (2.0, 3.0)
        ]
        layer = pipeline(
            [*cells, FCLayer.Params().Set(input_dim=3, output_dim=3)], 3, 2
        )
        batch = state_batch(4)
        batch[0][:] = [tf.ones([4, 3])]
        found.append(gradients(layer, batch))
    for a, b in zip(*map(tf.nest.flatten, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def _random_loss(x: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(x) * tf.random.uniform([]), 1.0))


def _accumulating(x: tf.Tensor, targets: Any) -> NestedMap:
    forward_context.current_context().accumulate("seen", tf.reduce_sum(x))
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

    with fails(path="the loss (stage 0)") as info:
        gradients(layer, ([x], targets), loss=loss)
    assert "['pipe/cells_0/b']" in info.value.got


@pytest.mark.parametrize(
    ("loss", "path", "got"),
    [
        (_random_loss, "the loss (stage 0)", "random_uniform/RandomUniform']"),
        (_capturing, "the loss (stage 0)", "a variable or table"),
        (_writing, "the loss (stage 0)", "['AssignAddVariableOp']"),
        (_accumulating, "ComputeLoss", "['seen']"),
    ],
)
def test_a_loss_that_is_no_pure_function_is_refused(
    loss: Any, path: str, got: str
) -> None:
    layer = pipeline([FCLayer.Params().Set(input_dim=6, output_dim=3)], 1, 2)
    (x, _), targets = state_batch(4)
    with fails(path=path) as info:
        gradients(layer, ([x], targets), loss=loss)
    assert got in str(info.value.got)


def test_a_loss_may_use_random_numbers_of_the_context() -> None:
    """By example: the same for any number of micro-batches."""

    def noisy(x: tf.Tensor, targets: Any) -> NestedMap:
        noise = forward_context.current_context().uniform("noise", 1, x.shape)
        return NestedMap(loss=(tf.reduce_mean(x * noise), x.shape[0]))

    losses = []
    for num_micro_batches in (1, 4):
        dense = FCLayer.Params().Set(input_dim=6, output_dim=3)
        layer = pipeline([dense], 1, num_micro_batches)
        (x, _), targets = state_batch(8)
        result = gradients(layer, ([x], targets), loss=noisy)
        losses.append(result.metrics.loss[0])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_operations_that_only_report_are_allowed() -> None:
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    check = _layer(lambda layer, x: tf.debugging.check_numerics(x, "not finite"))
    layer, batch = pipeline([dense, check], 2, 2), state_batch(4)
    batch[0][:] = [tf.ones([4, 3])]
    assert gradients(layer, batch).gradients.cells[0].w is not None
