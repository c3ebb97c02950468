"""A user's layers that mix examples are noticed, and no others."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.mixing import mixing_layers
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.example_models import MODELS
from tests.support.cases import exhaustive


class _Sampling(layers.Layer):
    """Draws its own numbers for each example, as variational autoencoders do."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        shape = keras.ops.shape(x)
        return x + keras.random.normal(shape, seed=self.seed_generator)


class _Fails(layers.Layer):
    def call(self, x: Any) -> Any:
        if not isinstance(x, keras.KerasTensor) and tf.executing_eagerly():
            raise ValueError("no such values")
        return x


def _centered(x: Any) -> Any:
    return x - tf.reduce_mean(x, axis=0)


_OWN = {
    "a mean": (lambda: layers.Lambda(_centered, name="own"), True),
    "a reversal": (lambda: layers.Lambda(lambda x: x[::-1], name="own"), True),
    "a shuffle": (lambda: layers.Lambda(tf.random.shuffle, name="own"), True),
    "dropout": (lambda: layers.Dropout(0.5, name="own"), False),
    "the last axis": (lambda: layers.Lambda(lambda x: x[:, ::-1], name="own"), False),
    "numbers": (_Sampling, False),
    "failure": (lambda: _Fails(name="own"), False),
}


@pytest.mark.parametrize("name", _OWN)
def test_mixing_is_noticed(name: str) -> None:
    make, mixes = _OWN[name]
    x = keras.Input((5,))
    model = keras.Model(x, layers.Dense(3)(make()(layers.Dense(4)(x))))
    assert mixing_layers(model) == ["own"] * mixes


def test_operations_over_the_mini_batch_are_noticed() -> None:
    x = keras.Input((5,))
    found = mixing_layers(
        keras.Model(x, layers.Dense(2)(x - keras.ops.mean(x, axis=0) + 1.0))
    )
    assert [name.partition("_")[0] for name in found] == ["mean"]


@pytest.mark.parametrize("name", ["vision_transformer", *map(exhaustive, MODELS)])
def test_example_models_mix_nothing(name: str) -> None:
    assert mixing_layers(MODELS[name]().model) == []


@pytest.mark.parametrize("number", [1, 2])
def test_it_is_reported_with_micro_batches(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    x = keras.Input((5,))
    model = keras.Model(x, layers.Dense(3)(layers.Lambda(_centered)(x)))
    with caplog.at_level("WARNING", "absl"):
        PipelinedModel(model, num_micro_batches=number)
    assert len(caplog.records) == number - 1
