"""Any outputs of a cell cross to another stage unchanged."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from tests.pipeline.example_layers import (
    function_cell,
    gradients,
    loss_fn,
    pipeline,
    plain_outputs,
    state_batch,
)
from tests.pipeline.plain_model import bytes_of
from tests.support.cases import exhaustive
from tests.support.errors import fails

Pair = collections.namedtuple("Pair", "a b")


class EmbeddingLayer(BaseLayer):
    """Looks up rows; the gradient of its table is sparse."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("table", WeightParams([5, 6]))

    def FProp(self, theta: NestedMap, rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(theta.table, rows)


class ControlFlowLayer(BaseLayer):
    """A layer with a loop and a branch."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([6, 6]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.tanh(tf.matmul(h, theta.w))

        _, x = tf.while_loop(lambda i, h: i < 3, body, [0, x])
        return tf.cond(x[0, 0] > 0, lambda: 2 * x, lambda: tf.matmul(x, theta.w))


class FrozenLayer(BaseLayer):
    """A layer with a trained weight after a frozen one."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable(
            "w", WeightParams([6, 6], None, tf.float32, trainable=False)
        )
        self.CreateVariable("b", WeightParams([6]))

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, theta.w) + theta.b


class CarryLayer(BaseLayer):
    """Passes on the input of a later layer."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([6, 6]))

    def FProp(self, theta: NestedMap, x: tf.Tensor, carried: tf.Tensor) -> Any:
        return tf.matmul(x, theta.w), carried


def _scale_gradient(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns the first input, whose gradient it multiplies by the second."""

    @tf.custom_gradient
    def pass_on(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda gradient: gradient * factor

    return pass_on(x)


def _functions(*functions: Callable) -> list[InstantiableParams]:
    """Returns cells: a dense layer, the functions and another dense layer."""
    middle = list(map(function_cell, functions))
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    return [dense, *middle, dense.Copy().Set(output_dim=3)]


CELLS: dict[str, list[InstantiableParams]] = {
    "complex": _functions(
        lambda x: tf.signal.fft(tf.cast(x, tf.complex64)), lambda z: tf.abs(z)
    ),
    "integers alone": _functions(
        lambda x: tf.cast(x > 0, tf.int32), lambda i: tf.cast(i, tf.float32)
    ),
    "lists, namedtuples, None, and many dtypes in a map": _functions(
        lambda x: {
            "pair": Pair(x, tf.cast(x > 0, tf.uint8)),
            "list": [tf.signal.fft(tf.cast(x, tf.complex64)), (tf.as_string(x), None)],
            "positive": x > 0,
        },
        lambda m: (
            tf.where(
                m["positive"],
                m["pair"].a,
                0 * tf.strings.to_number(m["list"][1][0]),
            )
            + tf.abs(m["list"][0])
            + tf.cast(m["pair"].b, tf.float32)
        ),
    ),
    "scalars": _functions(
        lambda x: (x, tf.reduce_mean(x), 2.0), lambda x, mean, two: x - two * mean
    ),
    "what no one uses": _functions(lambda x: (x, 3 * x), lambda x, unused: x),
    "the same twice": _functions(
        lambda x: (lambda y: (y, [y], y))(tf.tanh(x)), lambda a, b, c: a * b[0] + c
    ),
    "several users": _functions(
        lambda x: (x, tf.tanh(x)),
        lambda x, t: (x, t, x * t),
        lambda x, t, m: (x * m, x + t),
        lambda a, b: a * b,
    ),
    "an input used late": [
        CarryLayer.Params(),
        CarryLayer.Params(),
        function_cell(lambda y, mask: y * tf.cast(1 + mask, y.dtype)[:, tf.newaxis]),
        FCLayer.Params().Set(input_dim=6, output_dim=3),
    ],
    "an input of a gradient alone": _functions(
        lambda x: (x, tf.stop_gradient(tf.sin(x))), _scale_gradient
    ),
    "no gradient": _functions(tf.stop_gradient),
    "cells without weights": _functions(tf.tanh, tf.identity, tf.tanh),
    "control flow": [ControlFlowLayer.Params(), *_functions(tf.identity)],
    "frozen": [FrozenLayer.Params(), *_functions(tf.identity)],
    "sparse gradients": [EmbeddingLayer.Params(), *_functions(tf.identity)],
}


# Other tests, or other cells, have these too.
SIMPLE = {
    *("integers alone", "what no one uses", "the same twice", "cells without weights"),
    *("frozen", "an input used late", "control flow", "scalars", "several users"),
    "complex",
}
INPUTS: dict[str, Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]] = {
    "sparse gradients": lambda x, mask: [tf.constant([1, 1, 4, 0])],
    "an input used late": lambda x, mask: [x, mask],
}


@pytest.mark.parametrize(
    ("num_stages", "schedule"),
    [(None, "zero_bubble"), exhaustive(None, "gpipe"), exhaustive(2, "zero_bubble")],
)
@pytest.mark.parametrize(
    "name", [exhaustive(name) if name in SIMPLE else name for name in CELLS]
)
def test_bytes_are_those_of_one_stage_and_gradients_the_plain_models(
    name: str, num_stages: int | None, schedule: str
) -> None:
    """With a device for each cell (None), and with deferred weight gradients."""
    cells = CELLS[name]
    (x, mask), targets = state_batch(4)
    inputs = INPUTS.get(name, lambda x, mask: [x])(x, mask)
    one = pipeline(cells, 1, 2)
    many = pipeline(cells, num_stages or len(cells), 2, schedule=schedule)
    results = [gradients(layer, (inputs, targets)) for layer in (one, many)]
    want, got = (tf.nest.flatten(r.gradients) + [r.metrics.loss[0]] for r in results)
    assert bytes_of(got) == bytes_of(want)
    if name == "scalars":
        return  # A mean over a micro-batch is another than one over the mini-batch.
    with tf.GradientTape() as tape:
        loss = loss_fn(plain_outputs(one, inputs), targets).loss[0]
    plain = tape.gradient(loss, tf.nest.flatten(one.vars), unconnected_gradients="zero")
    for g, p, v in zip(want, plain, tf.nest.flatten(one.vars), strict=False):
        assert (g is None) == (not v.trainable)
        if g is not None:
            p = tf.convert_to_tensor(p)
            np.testing.assert_allclose(g, p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Pair(x, x + 1),
        lambda x: [x],
        lambda x: (x,),
        lambda x: NestedMap(a=NestedMap(b=[x, None])),
    ],
)
def test_outputs_keep_their_structure(function: Callable) -> None:
    (x, _), _ = state_batch(4)
    layer = pipeline([function_cell(function)], 1, 2)
    with ForwardContext(do_eval=True):
        got, want = layer.FProp(layer.theta, x), plain_outputs(layer, [x])
    tf.nest.assert_same_structure(got, want)
    assert type(got) is type(want)


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: tf.boolean_mask(x, x[:, 0] > 0), "float32 (None, 6)"),
        (lambda x: tf.RaggedTensor.from_tensor(x), "RaggedTensor"),
        (lambda x: tf.sparse.from_dense(x), "SparseTensor"),
        (lambda x: None, None),
    ],
)
def test_what_can_not_cross_is_refused_for_every_number_of_stages(
    function: Callable, got: str | None, num_stages: int
) -> None:
    (x, _), targets = state_batch(4)
    layer = pipeline(_functions(function), num_stages, 2)
    stage = min(num_stages - 1, 1)
    path = f"FProp of the FunctionLayer at pipe/cells_1 (stage {stage})"
    with fails(path=path, got=got):
        gradients(layer, ([x], targets))


@pytest.mark.parametrize(
    ("function", "error", "pattern"),
    [
        (lambda x: (x, x), TypeError, r"float32 \(2, 6\), float32 \(2, 6\).*FCLayer"),
        (lambda x: x[:, :5], ValueError, r"pipe/cells_2\b.*\b6\b.*\(2, 5\)"),
        (lambda x: (None,), ValueError, "shape <unknown>.*pipe/cells_1"),
    ],
)
def test_an_error_names_the_layer_though_it_shares_its_function(
    function: Callable, error: type, pattern: str
) -> None:
    dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
    cells = [dense, function_cell(function), dense]
    (x, _), targets = state_batch(4)
    with pytest.raises(error, match="pipe/cells_2") as found:
        gradients(pipeline(cells, 1, 2), ([x], targets))
    found.match(pattern)


def test_a_scalar_does_not_come_out_of_a_forward_pass() -> None:
    (x, _), _ = state_batch(4)
    layer = pipeline([function_cell(tf.reduce_mean)], 1, 2)
    with fails(path="pipe", got="()"):
        layer.FProp(layer.theta, x)
