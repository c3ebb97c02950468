"""Features of a model beyond a plain sequence of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import gradients, loss_fn, pipeline
from tests.pipeline.plain_model import (
    assert_close,
    by_path,
    micro_batches,
    plain_gradients,
)
from tests.pipeline.prologue_models import DIM, dense, make_batch
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _assert_plain(layer: PipeliningLayer, batch: Any, got: Any) -> None:
    want = plain_gradients(layer, batch).gradients
    assert_close(by_path(layer, got), want, 2e-6)


class TableLayer(BaseLayer):
    """Multiplies by a weight, or by its transpose."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("transpose", False, "Whether by the transpose.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([DIM, DIM]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, theta.w, transpose_b=self.params.transpose)


def _tied(num_stages: int, **params: Any) -> PipeliningLayer:
    transposed = TableLayer.Params().Set(transpose=True)
    cells = [TableLayer.Params(), dense(), dense(), transposed]
    params = {"tied": {"cells_3/w": "cells_0/w"}, **params}
    return pipeline(cells, num_stages, 4, **params)


def test_a_tied_weight_is_one_and_its_gradients_are_summed() -> None:
    bytes_by_stages = set()
    for num_stages in (1, 4):
        layer, batch = _tied(num_stages), make_batch(8)
        assert layer.vars.cells[3].w is layer.vars.cells[0].w
        assert "pipe/cells_3/w" not in layer.VariablePaths()
        result = gradients(layer, batch)
        assert result.gradients.cells[3].w is None
        _assert_plain(layer, batch, result.gradients)
        bytes_by_stages.add(result.gradients.cells[0].w.numpy().tobytes())
    assert len(bytes_by_stages) == 1


@pytest.mark.parametrize(("num_stages", "num_shared"), [(1, 1), exhaustive(2, 0)])
def test_a_tied_weight_counts_once_on_a_device(
    num_stages: int, num_shared: int
) -> None:
    batch, targets = make_batch(8)
    layers = _tied(num_stages), _tied(num_stages, tied={})
    tied, untied = (sum(x.PeakBytes(batch, targets, loss_fn)) for x in layers)
    assert untied - tied == num_shared * DIM * DIM * 4


def test_a_tie_to_an_unknown_weight_is_refused() -> None:
    with fails() as info:
        _tied(1, tied={"cells_3/w": "cells_0/v"})
    assert str(info.value).count("cells_") > 1


@pytest.mark.exhaustive
def test_cells_pass_on_the_state_dtype() -> None:
    """All but the last, so results do not depend on the number of stages."""
    results = []
    for num_stages in (1, 2):
        layer = pipeline([dense()] * 4, num_stages, 4, state_dtype=tf.bfloat16)
        batch = make_batch(8)
        with ForwardContext(do_eval=True):
            outputs = layer.FProp(layer.theta, *batch[0])
            plain = []
            for (x,), _ in micro_batches(batch[0], layer.params.num_micro_batches):
                for i, cell in enumerate(layer.cells):
                    x = cell.FProp(cell.theta, x)
                    x = tf.cast(x, tf.bfloat16) if i < 3 else x
                plain.append(x)
        assert outputs.dtype == tf.float32
        np.testing.assert_array_equal(outputs, tf.concat(plain, 0))
        results.append(gradients(layer, make_batch(8)).gradients)
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


class FrozenLayer(BaseLayer):
    """Adds an untrained weight."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("shift", WeightParams([DIM], trainable=False))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x + theta.shift)


@pytest.mark.parametrize(
    ("frozen", "index"),
    [
        (DropoutLayer, 2),
        *[exhaustive(FrozenLayer, i) for i in range(3)],
        *[exhaustive(DropoutLayer, 0), exhaustive(DropoutLayer, 1)],
    ],
)
def test_a_stage_may_have_nothing_to_train(frozen: type[BaseLayer], index: int) -> None:
    cells = [dense(), dense()]
    cells.insert(index, frozen.Params())
    layer, batch = pipeline(cells, 3, 4), make_batch(8)
    result = gradients(layer, batch)
    _assert_plain(layer, batch, result.gradients)
    with ForwardContext(step=tf.constant(0, tf.int64)), tf.GradientTape() as tape:
        outputs = layer.FProp(layer.theta, *batch[0])
    weights = [v for v in layer.VariablePaths().values() if v.trainable]
    assert all(g is not None for g in tape.gradient(outputs, weights))


class AuxiliaryLossLayer(BaseLayer):
    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        self.AddLoss("extra", tf.reduce_mean(x**2, 1))
        return x


def test_a_step_with_auxiliary_losses_can_be_diagnosed() -> None:
    cells = [dense(), AuxiliaryLossLayer.Params(), dense()]
    layer, batch = pipeline(cells, 2, 4, before_tpl=[dense()]), make_batch(8)
    gradients(layer, batch)
    with ForwardContext(step=tf.constant(3, tf.int64)):
        layer.Diagnose(layer.vars, *batch, loss_fn)
    assert len(layer.functions) == 1
