"""Layers that look identical but compute something else keep what they compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import exhaustive, fast_cases

WIDTH = 5


def named_relu(scale: float) -> Callable[[Any], Any]:
    """Returns a function that has the name of one of Keras."""

    def relu(x: Any) -> Any:
        return scale * keras.ops.relu(x)

    return relu


class Unsaved(keras.layers.Layer):
    """A layer with a factor, and without a configuration."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def call(self, x: Any) -> Any:
        return self.scale * x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def get_config(self) -> dict[str, Any]:
        raise AttributeError("of a layer that was never meant to be saved")


class ScaledDense(keras.layers.Dense):
    """A subclass of a layer of Keras that leaves its factor out, too."""

    def __init__(self, scale: float):
        super().__init__(WIDTH)
        self.scale = scale

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.scale * super().call(x)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


class ScaledCell(keras.layers.SimpleRNNCell):
    def __init__(self, scale: float):
        super().__init__(WIDTH)
        self.scale = scale

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        return super().call(x * self.scale, states, training=training)

    def get_config(self) -> dict[str, Any]:
        return keras.layers.SimpleRNNCell(self.units).get_config()


def patched(scale: float) -> keras.Layer:
    """Returns a layer of Keras whose call is replaced by one that looks the same."""
    layer = keras.layers.Dense(WIDTH)
    call = layer.call
    layer.call = functools.wraps(call)(lambda x, training=None: scale * call(x))
    return layer


def by_map(scale: float) -> keras.Layer:
    """Returns a layer whose name chooses its dtypes."""
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies["half"] = keras.DTypePolicy("mixed_bfloat16")
    name = "half" if scale > 1 else "full"
    return keras.layers.Dense(WIDTH, name=name, dtype=policies)


def large_constant(scale: float) -> keras.Layer:
    table = np.full([WIDTH, 1000], scale, np.float32)  # Its repr has "...".
    table[:, 500] *= 3
    return keras.layers.Lambda(lambda x: x @ table @ np.ones([1000, WIDTH], np.float32))


LAYERS: dict[str, Callable[[float], keras.Layer]] = {
    "activation of a known name": lambda x: keras.layers.Dense(
        WIDTH, activation=named_relu(x)
    ),
    "lambda over an array": large_constant,
    "own layer without a configuration": Unsaved,
    "subclass": ScaledDense,
    "patched": patched,
    "changed": lambda x: _changed(
        keras.layers.Dense(WIDTH, kernel_initializer="ones"), "use_bias", x < 1
    ),
    "policy by name": by_map,
    "wrapped": lambda x: keras.layers.TimeDistributed(Unsaved(x)),
    "recurrent": lambda x: keras.layers.RNN(ScaledCell(x)),
}
SEQUENCES = {"recurrent", "wrapped"}
# Those whose graphs differ in a number, an array, an operation and a type.
FAST = {
    *("own layer without a configuration", "lambda over an array"),
    *("changed", "policy by name"),
}


def _changed(layer: keras.Layer, name: str, value: Any) -> keras.Layer:
    setattr(layer, name, value)
    return layer


def _model(kind: str) -> keras.Model:
    """Returns a model of two layers of a kind, each behind a kernel."""
    x = inputs = keras.Input((WIDTH,))
    for scale in (0.1, 3.0):
        x = keras.layers.Dense(WIDTH)(x)
        if kind in SEQUENCES:
            x = keras.layers.RepeatVector(2)(x)
        x = LAYERS[kind](scale)(x)
        x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(x))


def _assert_predicts_as_plain_keras(model: keras.Model) -> None:
    x = np.random.default_rng(0).normal(size=[8, WIDTH]).astype(np.float32)
    expected = model(x).numpy()
    got = PipelinedModel(model, devices=2, num_micro_batches=2).predict(x, verbose=0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", fast_cases(LAYERS, FAST))
def test_layers_keep_what_they_compute(kind: str) -> None:
    _assert_predicts_as_plain_keras(_model(kind))


@pytest.mark.parametrize("order", ["aab", exhaustive("abb"), "bab"])
def test_the_calls_of_a_cell_are_each_of_their_layer(order: str) -> None:
    """Two cells have the same layers in another order."""
    x = inputs = keras.Input((WIDTH,))
    for name in ("aba", order):
        layers = {
            "a": keras.layers.PReLU("ones", name=f"{name}_a"),
            "b": keras.layers.PReLU(keras.initializers.Constant(-2.0)),
        }
        x = keras.layers.Dense(WIDTH)(x)
        for letter in name:
            x = layers[letter](x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    _assert_predicts_as_plain_keras(model)


def test_a_change_of_a_layer_counts_after_compile() -> None:
    layer = keras.layers.LeakyReLU(0.1)
    dense = keras.layers.Dense(WIDTH)
    model = keras.Sequential([keras.Input((WIDTH,)), dense, layer])
    pipelined = PipelinedModel(model, num_micro_batches=2)
    x = -np.ones([4, WIDTH], "float32")
    before = pipelined.predict(x, verbose=0)
    layer.negative_slope = 0.7
    pipelined.compile("sgd", loss="mse")
    after = pipelined.predict(x, verbose=0)
    assert not np.array_equal(after, before)
    np.testing.assert_allclose(after, model(x), rtol=1e-5, atol=1e-6)


def _num_functions(layers: list[keras.Layer]) -> int:
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    pipelined.predict(np.ones([4, WIDTH]), verbose=0)
    (function,) = pipelined.pipeline.functions
    return len({f.name for f in function.graph._functions.values()})


@pytest.mark.parametrize(
    "make", [exhaustive(lambda x: keras.layers.Dense(WIDTH)), ScaledDense]
)
def test_layers_with_equal_graphs_share_functions(make: Any) -> None:
    """They are traced one by one, but the graph has each of them once."""
    few, many = ([make(0.5) for _ in range(number)] for number in (4, 6))
    num_functions = _num_functions(few)
    assert _num_functions(many) == num_functions
    others = [ScaledDense(x) for x in (0.1, 0.2, 0.3, 0.4)]
    assert _num_functions(others) > num_functions
