"""Layers that look alike but compute something else keep what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.keras.model_cells import model_cells
from lingvo_pipe.keras.pipelined_model import PipelinedModel

WIDTH = 5


def scaled_tanh(scale: float) -> Callable[[Any], Any]:
    def tanh_of(x: Any) -> Any:
        return scale * keras.ops.tanh(x)

    return tanh_of


def named_relu(scale: float) -> Callable[[Any], Any]:
    """Returns a function that has the name of one of Keras."""

    def relu(x: Any) -> Any:
        return scale * keras.ops.relu(x)

    return relu


class Scaled(keras.layers.Layer):
    """A layer with a factor that its configuration leaves out."""

    def __init__(self, scale: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, x: Any) -> Any:
        return self.scale * x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Unsaved(Scaled):
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


class Cell(keras.layers.SimpleRNNCell):
    def __init__(self, units: int, scale: float):
        super().__init__(units)
        self.scale = scale

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        outputs, states = super().call(x * self.scale, states, training=training)
        return outputs, states

    def get_config(self) -> dict[str, Any]:
        return keras.layers.SimpleRNNCell(self.units).get_config()


class Decay:
    """A regularizer without a configuration."""

    def __init__(self, scale: float):
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return self.scale * keras.ops.sum(x**2)


def patched(scale: float) -> keras.Layer:
    """Returns a layer of Keras whose call is replaced."""
    layer = keras.layers.Dense(WIDTH)
    call = layer.call
    layer.call = lambda x, training=None: scale * call(x)
    return layer


def large_constant(scale: float) -> keras.Layer:
    table = np.full([WIDTH, 1000], scale, np.float32)  # Its repr has "...".
    table[:, 500] *= 3
    return keras.layers.Lambda(lambda x: x @ table @ np.ones([1000, WIDTH], np.float32))


def sequence_layer(scale: float) -> keras.Layer:
    return keras.layers.RNN(Cell(WIDTH, scale))


LAYERS: dict[str, Callable[[float], keras.Layer]] = {
    "activation": lambda x: keras.layers.Dense(WIDTH, activation=scaled_tanh(x)),
    "activation of a known name": lambda x: keras.layers.Dense(
        WIDTH, activation=named_relu(x)
    ),
    "activation layer": lambda x: keras.layers.Activation(scaled_tanh(x)),
    "lambda": lambda x: keras.layers.Lambda(scaled_tanh(x)),
    "lambda over an array": large_constant,
    "own layer": Scaled,
    "own layer without a configuration": Unsaved,
    "subclass": ScaledDense,
    "wrapped": lambda x: keras.layers.TimeDistributed(Scaled(x)),
    "patched": patched,
    "changed": lambda x: _changed(keras.layers.LeakyReLU(), "negative_slope", x),
    "policy": lambda x: keras.layers.Dense(
        WIDTH, dtype="float32" if x < 1 else "mixed_bfloat16"
    ),
    "recurrent": sequence_layer,
}
SEQUENCES = {"recurrent", "wrapped"}


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


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_keep_what_they_compute(kind: str) -> None:
    x = np.random.default_rng(0).normal(size=[8, WIDTH]).astype(np.float32)
    model = _model(kind)
    expected = model(x).numpy()
    got = PipelinedModel(model, devices=2, num_micro_batches=2).predict(x, verbose=0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def _num_functions(layers: list[keras.Layer]) -> int:
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    pipelined.predict(np.ones([4, WIDTH]), verbose=0)
    (function,) = pipelined.pipeline.functions
    return len({f.name for f in function.graph._functions.values()})


def test_layers_with_equal_graphs_share_functions() -> None:
    """Whatever they are, so that many layers of a user cost as much as few."""

    def layers(number: int) -> list[keras.Layer]:
        return [ScaledDense(0.5) for _ in range(number)]

    assert _num_functions(layers(6)) == _num_functions(layers(4))
    others = [ScaledDense(x) for x in (0.1, 0.2, 0.3, 0.4)]
    assert _num_functions(others) > _num_functions(layers(4))


def test_layers_of_keras_are_alike_by_their_settings() -> None:
    """They are not even traced twice."""
    model = keras.Sequential([keras.Input((WIDTH,))])
    for activation in ("relu", "relu", "gelu", keras.activations.relu):
        dense = keras.layers.Dense(
            WIDTH, activation=activation, kernel_regularizer="l2"
        )
        model.add(dense)
        model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.Dense(2))
    _, second, third, fourth, _ = model_cells(model).cells.values()
    assert second == fourth != third


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_regularizers_are_each_layers_own(scale: float) -> None:
    """They are no part of a trace; see `regularization`."""
    layers = [
        keras.layers.Dense(WIDTH, kernel_regularizer=Decay(x)) for x in (0.5, scale)
    ]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    penalty = sum(map(float, model.losses))
    pipelined = PipelinedModel(model, devices=2, num_micro_batches=2)
    pipelined.compile("sgd", loss="mse")
    x = tf.zeros([4, WIDTH])
    loss = pipelined.evaluate(x, model(x), verbose=0)
    assert loss == pytest.approx(penalty, rel=1e-5)
