"""Models that Keras would run and a pipeline cannot are refused, by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.core.errors import UserTypeError, UserValueError
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.keras.plain_attributes import PlainAttributes
from tests.keras.toy_models import (
    OUTPUTS,
    WIDTH,
    Block,
    UnorderedSeeds,
    fit,
    sequential,
)
from tests.support.errors import fails


class _Subclassed(keras.Model):
    def call(self, x: Any) -> Any:
        return x


class _OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return {}


class _Layer(layers.Layer):
    """A layer of one's own, by a function of it and its input."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__(name="own")
        self._function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return self._function(self, x)


def _untraceable() -> keras.Model:
    def fail(layer: Any, x: Any) -> Any:
        raise NotImplementedError

    model = keras.Sequential([layers.Dense(3), _Layer(fail)], name="own")
    model.build((None, 4))
    return model


def _without_layers() -> keras.Model:
    x = keras.Input((WIDTH,))
    return keras.Model(x, x, name="own")


def _of_input(*own: Any, **options: Any) -> keras.Model:
    start = keras.Input(**{"shape": (WIDTH,), "name": "rows", **options})
    return keras.Sequential([start, *own, layers.Dense(OUTPUTS)])


def _functional(kind: type) -> keras.Model:
    x = keras.Input((WIDTH,))
    return kind(x, layers.Dense(OUTPUTS)(x), name="own")


def _with_step() -> keras.Model:
    model = sequential(name="own")
    model.train_step = lambda data: {}
    return model


_OWN, _INPUT, _LAYER = "model 'own'", "input 'rows'", "layer 'own'"
_CANNOT_TRACE = "no input shape, or a layer of unknown outputs"
_MODELS: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "no model": (lambda: 3, "PipelinedModel(model=...)", 3),
    "pipelined": (
        lambda: PipelinedModel(sequential(name="own")),
        _OWN,
        "PipelinedModel, whose call method is its own",
    ),
    "subclassed": (
        lambda: _Subclassed(name="own"),
        _OWN,
        "_Subclassed, whose call method is its own",
    ),
    "unbuilt": (
        lambda: keras.Sequential([layers.Dense(3)], name="own"),
        _OWN,
        _CANNOT_TRACE,
    ),
    "untraceable": (_untraceable, _OWN, _CANNOT_TRACE),
    "without a layer": (_without_layers, _OWN, "none"),
    "a step that is replaced": (_with_step, _OWN, "Sequential.train_step"),
    "a package with a name like Keras's": (
        lambda: _functional(type("Own", (_OwnStep,), {"__module__": "keras_mine"})),
        _OWN,
        "Own.train_step",
    ),
    "sparse": (lambda: _of_input(sparse=True), _INPUT, "keras.Input(sparse=True)"),
    "fixed batch": (
        lambda: _of_input(shape=None, batch_shape=(8, 4)),
        _INPUT,
        "a batch size of 8",
    ),
    "mixing": (
        lambda: _of_input(layers.MixUp(name="own"), shape=(8, 8, 3)),
        _LAYER,
        "MixUp",
    ),
    "lookup": (
        lambda: _of_input(layers.Hashing(2, name="own"), dtype="int64"),
        _LAYER,
        "Hashing",
    ),
}


@pytest.mark.parametrize("name", _MODELS)
def test_a_model_that_cannot_be_cut(name: str) -> None:
    make, path, got = _MODELS[name]
    with fails(path=path, got=got):
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
    """Each method and property that a class may override, such as compute_loss."""
    method = inspect.getattr_static(keras.Model, name)
    model = _functional(type("Own", (keras.Model,), {name: method}))
    with fails(path="model 'own'", got=f"Own.{name}") as info:
        PipelinedModel(model)
    assert "keras.Model(model.inputs, model.outputs)" in info.value.hint


def test_the_graph_of_a_model_that_trains_in_its_own_way_is_taken() -> None:
    step: Any = {"train_step": lambda self, data: {}}
    model = _functional(type("Own", (keras.Model,), step))
    assert PipelinedModel(keras.Model(model.inputs, model.outputs)).model.layers


def test_a_model_of_its_own_class_may_have_other_methods() -> None:
    kind = type("Own", (keras.Model,), {"describe": lambda self: self.name})
    assert PipelinedModel(_functional(kind)).model.describe() == "own"


@pytest.mark.parametrize("devices", [0, True, "cpu:0", [], 3, ["cpu:0"] * 3])
def test_devices_that_are_none_or_more_than_cells(devices: Any) -> None:
    number = len(devices) if devices and isinstance(devices, list) else devices
    with fails(path="PipelinedModel(devices=...)", got=number):
        PipelinedModel(sequential(layers.Dense(4)), devices=devices)


def _fit(*middle: Any, num_micro_batches: int = 2, **options: Any) -> None:
    pipelined = PipelinedModel(sequential(*middle), 1, num_micro_batches)
    pipelined.compile("sgd", **{"loss": "mse", **options})
    fit(pipelined, 4)


def _scaled(layer: Any, x: Any) -> Any:
    layer.scale.assign(layer.scale * 0.5)
    return x * layer.scale


def _noisy(layer: Any, x: Any) -> Any:
    return x + keras.random.normal(keras.ops.shape(x), seed=layer.seed)


def _measured(layer: Any, x: Any) -> Any:
    layer.mean.update_state(keras.ops.mean(x))
    return x


def _of_another_model() -> Any:
    other = layers.Dense(4)
    other.build((None, 4))
    return layers.Lambda(lambda x: other(x), name="own")


_LAYERS: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "unseeded": (
        lambda: [_Layer(lambda _, x: x + keras.random.normal(keras.ops.shape(x)))],
        _LAYER,
    ),
    "writing": (lambda: [_Layer(_scaled)], "variable .*scale"),
    "another variable": (
        lambda: [_Layer(lambda layer, x: x * layer.number, number=tf.Variable(2.0))],
        _LAYER,
    ),
    "a metric": (lambda: [_Layer(_measured, mean=keras.metrics.Mean())], _LAYER),
    "of another model": (lambda: [_of_another_model()], _LAYER),
    "renorm": (lambda: [layers.BatchNormalization(name="own", renorm=True)], _LAYER),
    "an inner layer's mask": (
        lambda: [layers.RepeatVector(2), layers.Masking(), Block(name="own")],
        _LAYER,
    ),
    "two calls": (
        lambda: [
            layers.RepeatVector(2),
            layers.TimeDistributed(layers.BatchNormalization()),
        ],
        "variable .*moving",
    ),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_a_layer_that_would_differ_by_micro_batch(name: str) -> None:
    """The error once named the cell, and told of layers of another kind."""
    if name == "renorm" and not hasattr(layers.BatchNormalization(), "renorm"):
        pytest.skip("This Keras has no renorm.")
    make, path = _LAYERS[name]
    with fails() as info:
        _fit(layers.Dense(4), *make())
    assert re.match(path, info.value.path)


def test_seeds_out_of_order_are_refused() -> None:
    """Their state is no count of the draws, which a cell adds up."""
    with pytest.raises(UserValueError, match=r"seed_generator.*\bordered=False"):
        _fit(layers.Dense(4), _Layer(_noisy, seed=UnorderedSeeds(3)))


def test_a_stateful_operation_is_shown_with_its_layer() -> None:
    """Only the cell was named, and the forward context, which is not for Keras."""
    noise = layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)), name="own")
    with fails(hint=KerasCell.STATE_HINT) as info:
        _fit(layers.Dense(4), noise)
    assert re.search(r"own\w*/.*RandomStandardNormal", str(info.value))


def test_a_loss_of_weights_that_are_trained() -> None:
    """The outputs' gradients would not reach them."""
    dense = layers.Dense(4, name="own")
    loss = lambda y, z: keras.ops.mean(dense.kernel) + keras.ops.mean(z, -1)  # noqa: E731
    with fails(path="compile(loss=...)") as info:
        _fit(dense, loss=loss)
    assert dense.kernel.path in info.value.got


def test_a_micro_batch_that_a_layer_cannot_reshape() -> None:
    """The mini-batch is reshaped by pairs of examples, and micro-batches have one."""
    reshaped = [layers.Lambda(lambda x: keras.ops.reshape(x, (-1, 2, 4)), name="own")]
    reshaped.append(layers.Lambda(lambda x: keras.ops.reshape(x, (-1, 4))))
    _fit(*reshaped)
    with fails(path="layer 'own'") as info:
        _fit(*reshaped, num_micro_batches=4)
    assert "num_micro_batches" in info.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", None),
        ("loss", keras.losses.MeanSquaredError(reduction=None)),
        ("steps_per_execution", 2),
        ("jit_compile", True),
        ("run_eagerly", True),
    ],
)
def test_options_of_compile(name: str, value: Any) -> None:
    with fails(path=f"compile({name}=...)"):
        _fit(**{name: value})


def test_steps_per_execution_by_position() -> None:
    with fails(path="compile(steps_per_execution=...)", got=4):
        PipelinedModel(sequential()).compile("sgd", "mse", *[None] * 4, 4)


def test_a_distribution_strategy() -> None:
    """It was refused in the scope of one alone."""
    model = sequential(name="own")
    pipelined = PipelinedModel(model)
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        mirrored = sequential(name="own")
        with fails(path="model 'own'", got="OneDeviceStrategy"):
            PipelinedModel(model)
        with fails(path="model 'own'"):
            pipelined.predict(np.ones((2, WIDTH)), verbose=0)
    around = keras.Sequential([keras.Input((WIDTH,)), mirrored, layers.Dense(2)])
    for refused in (mirrored, around):
        with fails(path="model 'own'", got="OneDeviceStrategy"):
            PipelinedModel(refused)


def test_what_is_cloned_or_summed_up_is_the_plain_model() -> None:
    pipelined = PipelinedModel(sequential(), devices=1)
    with pytest.raises(UserTypeError) as info:
        keras.models.clone_model(pipelined)
    assert "`model`" in info.value.hint
    assert pipelined.to_json() == pipelined.model.to_json()
    for name, value in vars(PlainAttributes).items():
        assert name.startswith("__") or isinstance(value, property), name
    with fails(UserTypeError, got=["show_trainable"]):
        pipelined.summary(show_trainable=True)


@pytest.mark.parametrize("name", ["name", "tied", "cell_tpl", "batch_dim", "scedule"])
def test_a_param_that_the_model_settles_or_that_is_none(name: str) -> None:
    """The first three were given to the pipeline twice, and others ignored."""
    params: dict[str, Any] = {name: 1}
    with fails(UserTypeError, path=f"PipelinedModel({name}=...)") as info:
        PipelinedModel(sequential(layers.Dense(4)), **params)
    assert ("schedule" in info.value.hint) == (name == "scedule")
