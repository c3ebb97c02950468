"""Lingvo's layers run with other imports, in one stage or two to the same bytes."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe import gpipe, py_utils
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.nested_map import NestedMap
from tests.layers.lingvo import ported_layers
from tests.layers.lingvo.ported_layers import (
    Normalization,
    Projection,
    TransformerBlock,
)
from tests.support.cases import exhaustive

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


STACKS = [exhaustive(_projections), _normalizations, exhaustive(_transformer)]


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


def _train(layer: Any) -> Any:
    """Runs a training step without the optimizer's update; returns the results."""
    batch, targets = _batch(), tf.random.stateless_normal([B, D], [3, 4])
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(layer.theta, batch, targets, _loss)
        layer.PostTrainingStepUpdate(result.accumulated)
    return result


class _Trained(NamedTuple):
    """A pipeline that has run, with its training step and its outputs."""

    layer: Any
    result: Any
    outputs: tuple[tf.Tensor, tf.Tensor]


@pytest.fixture(scope="module", name="trained")
def _trained() -> Iterator[Callable[..., _Trained]]:
    """Returns a function of a stack and a number of stages, of 4 micro-batches."""

    @functools.cache
    def run(make_cells: Callable, splits: int) -> _Trained:
        layer = _pipeline(make_cells(), splits=splits, num_micro_batches=4)
        return _Trained(layer, _train(layer), layer.FPropDefaultTheta(*_batch()))

    yield run
    run.cache_clear()


@pytest.mark.parametrize("make_cells", STACKS)
def test_one_stage_or_two_give_the_same_bytes(
    make_cells: Callable, trained: Callable[..., _Trained]
) -> None:
    """Gradients, losses, outputs and updated variables are the same."""
    one, two = (
        tf.nest.flatten((x.result.gradients, x.result.metrics, x.outputs, x.layer.vars))
        for x in (trained(make_cells, 1), trained(make_cells, 2))
    )
    assert [x is None for x in one] == [x is None for x in two]
    for x, y in zip(one, two, strict=True):
        assert x is None or tf.identity(x).numpy().tobytes() == y.numpy().tobytes()


@pytest.mark.parametrize("make_cells", STACKS)
def test_gradients_are_those_of_the_layers_in_sequence(
    make_cells: Callable, trained: Callable[..., _Trained]
) -> None:
    """The layers get each micro-batch, which has statistics of its own."""
    layer, result, _ = trained(make_cells, 2)
    batch, targets = _batch(), tf.random.stateless_normal([B, D], [3, 4])
    theta = layer.theta
    flat = tf.nest.flatten(theta), tf.nest.flatten(result.gradients)
    pairs = [(x, y) for x, y in zip(*flat, strict=True) if y is not None]
    parts = [tf.split(x, 4) for x in (*batch, targets)]
    with tf.GradientTape() as tape:
        tape.watch([x for x, _ in pairs])
        loss = 0.25 * sum(
            _loss_in_sequence(layer.cells, theta.cells, *part)
            for part in zip(*parts, strict=True)
        )
    expected = tape.gradient(loss, [x for x, _ in pairs])
    for x, (_, y) in zip(expected, pairs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def _loss_in_sequence(cells: Any, theta: Any, *batch: tf.Tensor) -> tf.Tensor:
    inputs: Any = batch[:-1]
    with ForwardContext():
        for cell, own in zip(cells, theta, strict=True):
            inputs = cell.FProp(own, *inputs)
    return _loss(inputs, batch[-1]).loss[0]


def test_moments_are_those_of_the_mini_batch() -> None:
    """In several micro-batches too, moving averages move to them."""
    cells = [Normalization.Params().Set(dim=D, decay=0.0)]
    layer = _pipeline(cells, num_micro_batches=4)
    _train(layer)
    x, _ = _batch()
    mean, variance = np.mean(x, (0, 1)), np.var(x, (0, 1))
    moving = layer.cells[0].vars
    np.testing.assert_allclose(moving.moving_mean, mean, atol=1e-6)
    np.testing.assert_allclose(moving.moving_variance, variance, 1e-5)
    with ForwardContext(do_eval=True):
        outputs, _ = layer.FPropDefaultTheta(*_batch())
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def projections() -> Any:
    """Returns a pipeline that no test trains."""
    return _pipeline(_projections(), splits=2, num_micro_batches=4)


def test_paddings_do_not_reach_the_outputs(projections: Any) -> None:
    expected, _ = projections.FPropDefaultTheta(*_batch())
    (x, paddings), replaced = _batch(), tf.fill([B, T, D], np.float32(np.nan))
    other = tf.where(paddings[..., tf.newaxis] == 1.0, replaced, x)
    found, _ = projections.FPropDefaultTheta(other, paddings)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("make_cells", STACKS)
def test_costs_of_cells_follow_from_fprop_meta(
    make_cells: Callable, trained: Callable[..., _Trained]
) -> None:
    cells, inputs = make_cells(), ((2, T, D), (2, T))
    sizes = layer_sizes(cells, *inputs)
    layer = _pipeline(
        make_cells(),
        splits="auto",
        devices=["cpu:0", "cpu:1"],
        input_shapes=[*inputs],
    )
    taken = [inputs, *(size.outputs for size in sizes[:-1])]
    metas = [p.cls.FPropMeta(p, *x) for p, x in zip(cells, taken, strict=True)]
    assert [size.flops for size in sizes] == [meta.flops for meta in metas]
    assert layer.num_stages == 2
    outputs, _ = trained(make_cells, 2).outputs
    assert sizes[-1].output_elements == 2 * T * (outputs.shape[-1] + 1)


def test_half_precision_reaches_the_operations() -> None:
    cells = [_normalizations()[0], _transformer()[0]]
    layer = _pipeline(cells, fprop_dtype=tf.bfloat16)
    outputs, paddings = layer.FPropDefaultTheta(*_batch())
    assert outputs.dtype == paddings.dtype == tf.bfloat16


def test_assertions_stop_a_step(projections: Any) -> None:
    """The error names the cell, whose paddings are neither 0 nor 1."""
    x, paddings = _batch()
    with pytest.raises(tf.errors.InvalidArgumentError, match="stack/cells_0"):
        projections.FPropDefaultTheta(x, 0.5 * paddings)


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
