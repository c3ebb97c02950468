"""An error of a layer that can't be traced says which it is and what came in.

Shapes: b = 2 rows in a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import gradients, loss_fn, pipeline, state_batch


class FunctionLayer(BaseLayer):
    """Computes a function of its inputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("function", None, "What FProp computes.")
        return p

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        return self.params.function(*args)


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


def _function(function: Callable) -> InstantiableParams:
    return FunctionLayer.Params().Set(function=function)


@pytest.mark.parametrize(
    ("function", "error", "operation"),
    [
        (lambda x: x[:, :5], ValueError, "MatMul"),
        (lambda x: tf.cast(x, tf.float64), (TypeError, ValueError), "MatMul"),
        (lambda x: tf.cast(x > 0, tf.int32), (TypeError, ValueError), "MatMul"),
        (lambda x: x[0, 0], ValueError, "MatMul"),
    ],
)
def test_what_the_next_layer_does_not_take_is_named(
    function: Callable, error: Any, operation: str
) -> None:
    """By layer, stage and operation."""
    named = rf"(?s)ProductLayer.*\bpipe/cells_2 .*stage 2\b.*{operation}"
    with pytest.raises(error, match=named):
        _run(_function(function), ProductLayer.Params())


def _next(x: tf.Tensor) -> Any:
    return {"a": x}["b"]


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        (_function(_next), KeyError),
        (_function(lambda x: [x][1]), IndexError),
        (_function(lambda x: x.no_such), AttributeError),
        (_function(lambda x: tf.debugging.assert_less(3, 2)), Exception),
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


def test_who_changed_the_number_of_rows_is_named_where_it_matters() -> None:
    """In the loss, or in a layer that puts rows beside others."""
    twice, one = _function(lambda x: tf.repeat(x, 2, 0)), _function(lambda x: x[:1])
    hint = r"\b2\b.*\bpipe/cells_1 .*stage 1\b.*float32 \(4, 6\)"
    with pytest.raises(ValueError, match=rf"(?s)\bloss .*stage 2\b.*{hint}"):
        _run(twice, ProductLayer.Params(), loss=_product_loss)
    beside = _function(lambda x: x + tf.ones([3, 1]))
    with pytest.raises(ValueError, match=rf"(?s)pipe/cells_2 .*{hint}"):
        _run(twice, beside)
    with pytest.raises(ValueError, match=r"(?s)\bloss\b.*\bpipe/cells_1 "):
        _run(one, FCLayer.Params().Set(input_dim=6, output_dim=3))


def test_other_errors_say_nothing_of_rows() -> None:
    with pytest.raises(ValueError, match="pipe/cells_2") as found:
        _run(_function(lambda x: (x, x[:1])), _function(lambda x, y: x[:, :5] + x))
    assert "pipe/cells_1" not in str(found.value)
