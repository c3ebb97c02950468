"""Lingvo's layers run with other imports, in one stage or two to the same bytes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe import gpipe, py_utils
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs
from tests.layers.lingvo import ported_layers
from tests.layers.lingvo.ported_layers import (
    Normalization,
    Projection,
    TransformerBlock,
)

B, T, D = 8, 5, 4
GAUSSIAN = py_utils.WeightInit.Gaussian(0.5)


def _projections() -> list[InstantiableParams]:
    sizes = [(D, 6), (6, 3), (3, D)]
    return [
        Projection.Params().Set(input_dim=m, output_dim=n, has_bias=m != 6)
        for m, n in sizes
    ]


def _normalizations() -> list[InstantiableParams]:
    projection = _projections()[0].Set(output_dim=D)
    return [projection, Normalization.Params().Set(dim=D), projection.Copy()]


def _transformer() -> list[InstantiableParams]:
    return [TransformerBlock.Params().Set(dim=D, hidden_dim=6) for _ in range(2)]


STACKS = [_projections, _normalizations, _transformer]


def _pipeline(cells: list[InstantiableParams], **params: Any) -> Any:
    p = gpipe.PipeliningLayer.Params()
    p.Set(name="stack", cell_tpl=cells, params_init=GAUSSIAN, **params)
    return p.Instantiate()


def _batch() -> list[tf.Tensor]:
    x = tf.random.stateless_normal([B, T, D], [1, 2])
    lengths = tf.constant([5, 3, 4, 5, 1, 2, 5, 4])
    return [x, py_utils.PaddingsFromLengths(lengths, T)]


def _loss(outputs: tuple[tf.Tensor, tf.Tensor], targets: tf.Tensor) -> NestedMap:
    error = tf.reduce_mean(tf.square(outputs[0] - targets[:, tf.newaxis]))
    return NestedMap(loss=(error, tf.constant(1.0)))


def _train_step(layer: Any) -> list[np.ndarray]:
    """Returns the gradients, the loss, the outputs and all updated variables."""
    batch, targets = _batch(), tf.random.stateless_normal([B, D], [3, 4])
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(layer.theta, batch, targets, _loss)
        layer.PostTrainingStepUpdate(result.accumulated)
    outputs = layer.FPropDefaultTheta(*batch)
    found = (result.gradients, result.metrics.loss, outputs, layer.vars)
    return [tf.identity(x).numpy() for x in tf.nest.flatten(found) if x is not None]


@pytest.mark.parametrize("make_cells", STACKS)
def test_one_stage_or_two_give_the_same_bytes(make_cells: Callable) -> None:
    one, two = (
        _train_step(_pipeline(make_cells(), splits=n, num_micro_batches=4))
        for n in (1, 2)
    )
    assert len(one) == len(two)
    assert [x.tobytes() for x in one] == [x.tobytes() for x in two]


@pytest.mark.parametrize("make_cells", [_projections, _transformer])
def test_gradients_are_those_of_the_layers_in_sequence(make_cells: Callable) -> None:
    """With one micro-batch: the statistics are those of a micro-batch."""
    layer = _pipeline(make_cells(), splits=2)
    batch, targets = _batch(), tf.random.stateless_normal([B, D], [3, 4])
    theta = layer.theta
    pipelined = layer.ComputeGradients(theta, batch, targets, _loss).gradients
    trained = [x for x, y in _pairs(theta, pipelined) if y is not None]
    with tf.GradientTape() as tape:
        tape.watch(trained)
        outputs: Any = tuple(batch)
        for cell, own in zip(layer.cells, theta.cells, strict=True):
            outputs = cell.FProp(own, *outputs)
        loss = _loss(outputs, targets).loss[0]
    expected = tape.gradient(loss, trained)
    found = [y for _, y in _pairs(theta, pipelined) if y is not None]
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def _pairs(theta: NestedMap, gradients: NestedMap) -> list[tuple[Any, Any]]:
    flat = tf.nest.flatten(theta), tf.nest.flatten(gradients)
    return [*zip(*flat, strict=True)]


def test_moments_are_those_of_the_mini_batch() -> None:
    """Whatever the number of micro-batches, moving averages move to them."""
    for num_micro_batches in (1, 4):
        cells = [Normalization.Params().Set(dim=D, decay=0.0)]
        layer = _pipeline(cells, num_micro_batches=num_micro_batches)
        _train_step(layer)
        x, _ = _batch()
        moving = layer.cells[0].vars
        np.testing.assert_allclose(moving.moving_mean, np.mean(x, (0, 1)), atol=1e-6)
        np.testing.assert_allclose(moving.moving_variance, np.var(x, (0, 1)), 1e-5)
        with ForwardContext(do_eval=True):
            outputs, _ = layer.FPropDefaultTheta(*_batch())
        expected = (x - np.mean(x, (0, 1))) / np.sqrt(np.var(x, (0, 1)) + 1e-3)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_paddings_do_not_reach_the_outputs() -> None:
    layer = _pipeline(_projections(), splits=2)
    (x, paddings), replaced = _batch(), tf.fill([B, T, D], np.float32(np.nan))
    other = tf.where(paddings[..., tf.newaxis] == 1.0, replaced, x)
    expected, _ = layer.FPropDefaultTheta(x, paddings)
    found, _ = layer.FPropDefaultTheta(other, paddings)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("make_cells", STACKS)
def test_costs_of_cells_follow_from_fprop_meta(make_cells: Callable) -> None:
    cells = make_cells()
    costs = cell_costs(cells, (2, T, D), (2, T))
    layer = _pipeline(
        make_cells(),
        splits="auto",
        devices=["cpu:0", "cpu:1"],
        input_shapes=[(2, T, D), (2, T)],
    )
    assert len(costs.flops) == len(cells)
    assert min(costs.flops) > 0
    assert layer.num_stages == 2
    outputs, _ = layer.FPropDefaultTheta(*_batch())
    assert costs.passed_on[-1] == 2 * T * (outputs.shape[-1] + 1)


def test_half_precision_reaches_the_operations() -> None:
    cells = [*_projections(), *_transformer()]
    layer = _pipeline(cells, fprop_dtype=tf.bfloat16)
    outputs, paddings = layer.FPropDefaultTheta(*_batch())
    assert outputs.dtype == paddings.dtype == tf.bfloat16


def test_assertions_stop_a_step() -> None:
    """The error names the cell, whose paddings are neither 0 nor 1."""
    layer = _pipeline(_projections(), splits=2, num_micro_batches=4)
    x, paddings = _batch()
    with pytest.raises(tf.errors.InvalidArgumentError, match="stack/cells_0"):
        layer.FPropDefaultTheta(x, 0.5 * paddings)


def test_only_the_imports_are_changed() -> None:
    """Each is one of Lingvo's, where `lingvo_pipe` stands for `lingvo.core`."""
    tree = ast.parse(inspect.getsource(ported_layers))
    imports = [x for x in ast.walk(tree) if isinstance(x, (ast.Import, ast.ImportFrom))]
    assert {ast.unparse(x) for x in imports} == {
        "import tensorflow as tf",
        "from lingvo_pipe import base_layer, py_utils, tshape",
    }


def test_params_are_checked_by_the_layers_own_assertions() -> None:
    with pytest.raises(AssertionError):
        _pipeline([Projection.Params().Set(input_dim=0, output_dim=1)])
