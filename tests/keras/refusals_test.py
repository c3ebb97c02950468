"""Models that Keras would run and a pipeline cannot are refused, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.core.errors import UserTypeError, UserValueError
from lingvo_pipe.keras.pipelined_model import PipelinedModel


class _Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class _OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return {}


class _Unseeded(layers.Layer):
    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x))


class _Writing(layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        self.scale.assign(self.scale * 0.5)
        return x * self.scale


class _Variable(layers.Layer):
    """A layer with a variable that Keras does not know of."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.number = tf.Variable(2.0)

    def call(self, x: Any) -> Any:
        return x * self.number


class _Metric(layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.mean = keras.metrics.Mean()

    def call(self, x: Any) -> Any:
        self.mean.update_state(keras.ops.mean(x))
        return x


class _Untraceable(layers.Layer):
    def call(self, x: Any) -> Any:
        raise NotImplementedError


def _of_another_model() -> Any:
    other = layers.Dense(4)
    other.build((None, 4))
    return layers.Lambda(lambda x: other(x), name="own")


def _untraceable() -> keras.Model:
    model = keras.Sequential([layers.Dense(3), _Untraceable()], name="untraceable")
    model.build((None, 4))
    return model


def _sequential(*own: Any) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *own, layers.Dense(3)])


def _own_step() -> keras.Model:
    x = keras.Input((4,))
    return _OwnStep(x, layers.Dense(3)(x))


_MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "no model": (lambda: 3, "PipelinedModel"),
    "a layer": (lambda: layers.Dense(3), "keras.Sequential"),
    "pipelined": (lambda: PipelinedModel(_sequential()), "`model`"),
    "subclassed": (_Subclassed, "subclassed"),
    "unbuilt": (lambda: keras.Sequential([layers.Dense(3)], name="open"), "open"),
    "untraceable": (_untraceable, "untraceable"),
    "sparse": (
        lambda: keras.Sequential(
            [keras.Input((4,), sparse=True, name="rows"), layers.Dense(3)]
        ),
        "rows.*sparse=True",
    ),
    "own train_step": (_own_step, "train_step"),
    "fixed batch": (
        lambda: keras.Sequential([keras.Input(batch_shape=(8, 4)), layers.Dense(3)]),
        "input",
    ),
    "mixing": (
        lambda: keras.Sequential([keras.Input((8, 8, 3)), layers.MixUp(name="mix")]),
        "mix",
    ),
    "lookup": (
        lambda: keras.Sequential(
            [
                keras.Input((4,), dtype="int64"),
                layers.IntegerLookup(vocabulary=[1, 2], name="lookup"),
            ]
        ),
        "lookup",
    ),
}


@pytest.mark.parametrize("name", _MODELS)
def test_a_model_that_cannot_be_cut(name: str) -> None:
    make, named = _MODELS[name]
    with pytest.raises(ValueError, match=named):
        PipelinedModel(make(), devices=1)


_TRAINERS = [x for x in keras.Model.__mro__ if x.__module__.endswith(".trainer")]


@pytest.mark.parametrize(
    "name",
    sorted(
        {n for x in _TRAINERS for n in vars(x) if not n.startswith("_")}
        - {"compile_from_config", "get_compile_config", "loss"}
    ),
)
def test_a_model_that_trains_in_its_own_way(name: str) -> None:
    """Each method and property that a class may override."""
    kind = type(
        "Own", (keras.Model,), {name: inspect.getattr_static(keras.Model, name)}
    )
    x = keras.Input((4,))
    with pytest.raises(ValueError, match=rf"\bOwn\.{name}\b"):
        PipelinedModel(kind(x, layers.Dense(3)(x)))


def test_a_model_whose_step_is_replaced() -> None:
    model = _sequential()
    model.train_step = lambda data: {}
    with pytest.raises(ValueError, match=r"\bSequential\.train_step\b"):
        PipelinedModel(model)


def test_a_package_may_have_a_name_like_kerass() -> None:
    kind = type("Own", (_OwnStep,), {"__module__": "keras_mine.models"})
    x = keras.Input((4,))
    with pytest.raises(ValueError, match=r"\bOwn\.train_step\b"):
        PipelinedModel(kind(x, layers.Dense(3)(x)))


def test_a_model_of_its_own_class_may_have_other_methods() -> None:
    class Own(keras.Model):
        def describe(self) -> str:
            return self.name

    x = keras.Input((4,))
    assert PipelinedModel(Own(x, layers.Dense(3)(x))).model.describe()


@pytest.mark.parametrize("devices", [0, True, "cpu:0", [], 3, ["cpu:0"] * 3])
def test_devices_that_are_none_or_more_than_cells(devices: Any) -> None:
    with pytest.raises(ValueError, match="devices"):
        PipelinedModel(_sequential(layers.Dense(4)), devices=devices)


def _fit(model: keras.Model, **options: Any) -> None:
    pipelined = PipelinedModel(model, devices=1, num_micro_batches=2)
    pipelined.compile("sgd", **{"loss": "mse", **options})
    pipelined.fit(np.ones((4, 4), "float32"), np.ones((4, 3), "float32"), verbose=0)


@pytest.mark.parametrize(
    ("layer", "named"),
    [(_Unseeded(name="unseeded"), "unseeded"), (_Writing(name="writing"), "scale")],
)
def test_a_layer_that_would_differ_by_micro_batch(layer: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _fit(_sequential(layers.Dense(4), layer))


@pytest.mark.parametrize("make", [_Variable, _Metric, _of_another_model])
def test_a_layer_that_uses_other_variables(make: Callable[[], Any]) -> None:
    """The error named the cell, and told of layers of another kind."""
    with pytest.raises(UserValueError) as error:
        _fit(_sequential(layers.Dense(4), make()))
    assert error.value.path == "layer 'own'"


def test_a_loss_of_weights_that_are_trained() -> None:
    """The outputs' gradients would not reach them."""
    model = _sequential(layers.Dense(4))
    kernel = model.layers[-1].kernel
    with pytest.raises(UserValueError) as error:
        _fit(model, loss=lambda y, z: keras.ops.mean(kernel) + keras.ops.mean(z, -1))
    assert error.value.path == "compile(loss=...)"
    assert kernel.path in str(error.value.got)


def test_a_micro_batch_that_a_layer_cannot_reshape() -> None:
    """The mini-batch is reshaped by pairs of examples, and micro-batches have one."""
    x = start = keras.Input((4,))
    for shape in ((-1, 2, 4), (-1, 4)):
        x = keras.ops.reshape(layers.Dense(4)(x), shape)
    model = keras.Model(start, layers.Dense(3)(x))
    _fit(model)
    pipelined = PipelinedModel(model, num_micro_batches=4)
    pipelined.compile("sgd", "mse")
    with pytest.raises(ValueError, match="num_micro_batches"):
        pipelined.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)


def test_keras_options_of_summary() -> None:
    with pytest.raises(UserTypeError) as error:
        PipelinedModel(_sequential()).summary(show_trainable=True)
    assert error.value.got == ["show_trainable"]


@pytest.mark.parametrize(
    "options",
    [
        {"loss": None},
        {"steps_per_execution": 2},
        {"jit_compile": True},
        {"run_eagerly": True},
        {"loss": keras.losses.MeanSquaredError(reduction=None)},
    ],
)
def test_options_of_compile(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="compile"):
        _fit(_sequential(), **options)


def test_steps_per_execution_by_position() -> None:
    with pytest.raises(ValueError, match="steps_per_execution"):
        PipelinedModel(_sequential()).compile("sgd", "mse", *[None] * 4, 4)


def test_a_distribution_strategy() -> None:
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = _sequential()
        with pytest.raises(ValueError, match="strategy"):
            PipelinedModel(model, devices=1)


def test_what_is_cloned_is_the_plain_model() -> None:
    pipelined = PipelinedModel(_sequential(), devices=1)
    with pytest.raises(TypeError, match="`model`"):
        keras.models.clone_model(pipelined)
    assert pipelined.to_json() == pipelined.model.to_json()


@pytest.mark.parametrize("name", ["name", "tied", "cell_tpl", "batch_dim", "scedule"])
def test_a_param_that_the_model_settles_or_that_is_none(name: str) -> None:
    """The first three were given to the pipeline twice, and others ignored."""
    params: dict[str, Any] = {name: 1}
    with pytest.raises(UserTypeError) as error:
        PipelinedModel(_sequential(layers.Dense(4)), **params)
    assert error.value.path == f"PipelinedModel({name}=...)"
    assert ("schedule" in error.value.hint) == (name == "scedule")
