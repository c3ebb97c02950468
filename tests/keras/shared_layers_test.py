"""Models that share layers with a pipelined one: as in plain Keras, or refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_close
from tests.support.cases import exhaustive
from tests.support.errors import fails

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(8, 6)).astype("float32")
_REAL = _RANDOM.normal(size=(8, 4)).astype("float32")
_NOISE = _RANDOM.normal(size=(8, 3)).astype("float32")
_LABELS = np.ones((8, 1), "float32")


def _dense(sizes: list[int], name: str) -> keras.Model:
    kernels = [layers.Dense(n, activation="tanh") for n in sizes[1:]]
    return keras.Sequential([keras.Input((sizes[0],)), *kernels], name=name)


def _sgd() -> keras.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def _gan(devices: tuple[int, int]) -> list[Any]:
    """Trains by turns, with the discriminator frozen within the outer model.

    Of the two numbers of devices, 0 stands for plain Keras.
    """
    keras.utils.set_random_seed(1)
    generator, discriminator = _dense([3, 6, 4], "g"), _dense([4, 6, 1], "d")
    alone: Any = discriminator
    if devices[0]:
        alone = PipelinedModel(discriminator, devices=devices[0])
    alone.compile(_sgd(), loss="mse")
    results = [alone.train_on_batch(_REAL, _LABELS)]
    discriminator.trainable = False
    noise = keras.Input((3,))
    outer: Any = keras.Model(noise, discriminator(generator(noise)))
    if devices[1]:
        outer = PipelinedModel(outer, devices=devices[1])
    outer.compile(_sgd(), loss="mse")
    for _ in range(3):
        results.append(outer.train_on_batch(_NOISE, _LABELS))
        made = generator.predict(_NOISE, verbose=0)
        results += [
            alone.train_on_batch(_REAL, _LABELS),
            alone.train_on_batch(made, 0 * _LABELS),
        ]
    return [*results, *generator.get_weights(), *discriminator.get_weights()]


@pytest.mark.parametrize("devices", [(2, 0), *map(exhaustive, [(1, 1), (2, 2)])])
def test_a_gan_trains_by_turns(devices: tuple[int, int]) -> None:
    """Freezing moved storage, which the other model went on to train."""
    assert_close([_gan((0, 0)), _gan(devices)], rtol=1e-4)


def test_a_model_that_trained_moved_weights_asks_to_be_compiled() -> None:
    """With the outer model on two devices, the discriminator's kernels move there."""
    with fails(path="model 'd'"):
        _gan((0, 2))


@pytest.mark.parametrize("devices", [exhaustive(1), 3])
def test_an_encoder_that_has_predicted_sees_its_autoencoder_train(devices: int) -> None:
    outputs = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(2)
        encoder, decoder = _dense([6, 5, 3], "e"), _dense([3, 6], "d")
        model: Any = keras.Model(encoder.inputs, decoder(encoder(encoder.inputs[0])))
        encoder.predict(_X, verbose=0)
        if is_pipelined:
            model = PipelinedModel(model, devices=devices)
        model.compile(_sgd(), loss="mse")
        model.fit(_X, _X, epochs=3, verbose=0)
        outputs.append(encoder.predict(_X, verbose=0))
    assert_close(outputs, rtol=1e-4)


def test_a_function_of_old_storage_fails() -> None:
    """It used to read numbers that nobody trains any more."""
    model = _dense([6, 5, 3], "m")
    last = keras.Model(model.layers[-1].input, model.outputs)  # Not within `model`.
    values = np.zeros((2, 5), "float32")
    before = last.predict(values, verbose=0)
    PipelinedModel(model, devices=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="7919"):
        last.predict(values, verbose=0)
    last.compile()
    np.testing.assert_array_equal(before, last.predict(values, verbose=0))


def test_two_pipelines_of_other_layouts_share_layers(caplog: Any) -> None:
    """Weights move at every turn, with a warning."""
    results = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(3)
        first: Any = _dense([6, 6, 6], "m")
        second: Any = keras.Model(first.inputs, first.layers[0].output)
        if is_pipelined:
            first = PipelinedModel(first, devices=2)  # It begins on cpu:0.
            second = PipelinedModel(second, devices=["cpu:1"])
        first.compile(_sgd(), loss="mse")
        second.compile(_sgd(), loss="mse")
        losses = [x.train_on_batch(_X, _X) for x in (first, second, first)]
        results.append([losses, *first.get_weights()])
    assert_close(results, rtol=1e-4)
    assert "move back" in caplog.text
