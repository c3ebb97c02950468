"""Errors of layers name the layer and its inputs; traced layers take no functions.

Shapes: b = 2 rows in a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import (
    function_cell,
    gradients,
    loss_fn,
    pipeline,
    state_batch,
)
from tests.support.errors import fails


class BareLayer(BaseLayer):
    """A layer whose FProp was forgotten."""


class ProductLayer(BaseLayer):
    """Multiplies by a matrix, and checks nothing."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([6, 6]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, theta.w)


def _run(*cells: InstantiableParams, loss: Any = loss_fn) -> NestedMap:
    """A dense layer and the cells, a stage each."""
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    (x, _), targets = state_batch(4)
    layer = pipeline([dense, *cells], len(cells) + 1, 2)
    return gradients(layer, ([x], targets), loss=loss)


@pytest.mark.parametrize(
    ("function", "error", "operation"),
    [
        (lambda x: x[:, :5], ValueError, "MatMul"),
        (lambda x: tf.cast(x, tf.float64), (TypeError, ValueError), "MatMul"),
        (lambda x: tf.cast(x > 0, tf.int32), (TypeError, ValueError), "MatMul"),
        (lambda x: x[0, 0], ValueError, "MatMul"),
    ],
)
def test_an_input_that_the_next_layer_refuses_is_named(
    function: Callable, error: Any, operation: str
) -> None:
    """By layer, stage and operation."""
    named = rf"(?s)ProductLayer.*\bpipe/cells_2 .*stage 2\b.*{operation}"
    with pytest.raises(error, match=named):
        _run(function_cell(function), ProductLayer.Params())


def _next(x: tf.Tensor) -> Any:
    return {"a": x}["b"]


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        (function_cell(_next), KeyError),
        (function_cell(lambda x: [x][1]), IndexError),
        (function_cell(lambda x: x.no_such), AttributeError),
        (function_cell(lambda x: tf.debugging.assert_less(3, 2)), Exception),
        (BareLayer.Params(), NotImplementedError),
    ],
)
def test_errors_of_every_kind_name_the_layer(
    cell: InstantiableParams, error: type
) -> None:
    layer = rf"{cell.cls.__name__}\b.*\bpipe/cells_1 .*stage 1\b"
    with pytest.raises(error, match=rf"{layer}.*float32 \(2, 6\)"):
        _run(cell)


def _product_loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(logits[:, 0] * targets.weight), 1.0))


def test_the_layer_that_changed_the_rows_is_named_where_it_matters() -> None:
    """In the loss, or in a layer that combines rows."""
    twice, one = (
        function_cell(lambda x: tf.repeat(x, 2, 0)),
        function_cell(lambda x: x[:1]),
    )
    hint = r"\b2\b.*\bpipe/cells_1 .*stage 1\b.*float32 \(4, 6\)"
    with pytest.raises(ValueError, match=rf"(?s)\bloss .*stage 2\b.*{hint}"):
        _run(twice, ProductLayer.Params(), loss=_product_loss)
    beside = function_cell(lambda x: x + tf.ones([3, 1]))
    with pytest.raises(ValueError, match=rf"(?s)pipe/cells_2 .*{hint}"):
        _run(twice, beside)
    with pytest.raises(ValueError, match=r"(?s)\bloss\b.*\bpipe/cells_1 "):
        _run(one, FCLayer.Params().Set(input_dim=6, output_dim=3))


def test_other_errors_say_nothing_of_rows() -> None:
    with pytest.raises(ValueError, match="pipe/cells_2") as found:
        _run(
            function_cell(lambda x: (x, x[:1])),
            function_cell(lambda x, y: x[:, :5] + x),
        )
    assert "pipe/cells_1" not in str(found.value)


def test_a_list_of_tensors_between_layers_is_refused() -> None:
    """Once its part of the gradient was lost."""

    def pack(x: tf.Tensor) -> Any:
        shape = tf.constant([6])
        return x, tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=shape)

    with fails(path="FProp of the FunctionLayer at pipe/cells_1 (stage 1)") as info:
        _run(function_cell(pack), function_cell(lambda x, handle: x))
    assert "variant" in info.value.got


class ClosingLayer(BaseLayer):
    """Calls a function that was added to it."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.AddFunction("change", lambda x: x)

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return self.fns.change(x)


def _mean(outputs: tf.Tensor, targets: Any) -> NestedMap:
    return NestedMap(loss=(tf.reduce_mean(outputs), tf.constant(2.0)))


def _run_closing(layer: PipeliningLayer, do_eval: bool = False) -> float:
    with ForwardContext(do_eval=do_eval):
        metrics = layer.ComputeMetrics(layer.theta, [tf.ones([4, 2])], None, _mean)
    return float(metrics.loss[0])


def test_before_the_first_run_one_may_take_the_place_of_another() -> None:
    layer = pipeline([ClosingLayer.Params()] * 2, 2, 2)
    for cell in layer.cells:
        cell.AddFunction("change", lambda x: 3.0 * x, replace=True)
    assert _run_closing(layer) == 9.0


@pytest.mark.parametrize("name", ["change", "another"])
@pytest.mark.parametrize("do_eval", [False, True])
@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"cell_tpl": [ClosingLayer.Params()] * 2}, "pipe/cells_1"),
        ({"before_tpl": [ClosingLayer.Params()]}, "pipe/before_0"),
        (
            {"cell_tpl": [SequentialLayer.Params().Set(sub=[ClosingLayer.Params()])]},
            "pipe/cells_0/sub_0",
        ),
    ],
    ids=["one that shares a trace", "before", "within"],
)
def test_after_a_run_none_is_taken(
    params: dict[str, Any], path: str, do_eval: bool, name: str
) -> None:
    cells = params.get("cell_tpl", [ClosingLayer.Params()])
    layer = pipeline(cells, 1, 2, before_tpl=params.get("before_tpl", []))
    assert _run_closing(layer, do_eval) == 1.0
    (found,) = (below for below in layer.Descendants() if below.path == path)
    with fails(path=path, got=name):
        found.AddFunction(name, lambda x: 3.0 * x, replace=True)
    assert found.fns.keys() == {"change"}
    assert _run_closing(layer, do_eval) == 1.0


def test_a_layer_that_failed_may_be_mended() -> None:
    layer = pipeline([ClosingLayer.Params()], 1, 2)
    layer.cells[0].AddFunction("change", lambda x: x.no_such, replace=True)
    with pytest.raises(AttributeError, match="no_such"):
        _run_closing(layer)
    layer.cells[0].AddFunction("change", lambda x: 3.0 * x, replace=True)
    assert _run_closing(layer) == 3.0
