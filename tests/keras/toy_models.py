"""Layers of one's own, a small model, and the same one pipelined, to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel

WIDTH, OUTPUTS = 4, 3
Wrap = Callable[[Any], Any]


class Sampling(layers.Layer):
    """Draws numbers in evaluation too, as variational autoencoders do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        shape = keras.ops.shape(x)
        return x + keras.random.normal(shape, seed=self.seed_generator)


class UnorderedSeeds(keras.random.SeedGenerator):
    """Gives seeds whose state is no count of the draws."""

    def next(self, ordered: bool = False) -> Any:
        return super().next(ordered)


class Block(layers.Layer):
    """A composite layer that passes its input's mask on to batch normalization."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.norm = layers.BatchNormalization(momentum=0.5)
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        self.norm.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.norm(x, training=training)


def numbers(*shape: int) -> np.ndarray:
    """Returns the same random numbers in each call."""
    return np.random.default_rng(0).normal(1.0, 2.0, shape).astype("float32")


X, Y = numbers(8, WIDTH), numbers(8, OUTPUTS)


def sequential(*middle: Any, **options: Any) -> Any:
    """Returns a Sequential model of these layers and a Dense one."""
    start = keras.Input((WIDTH,))
    return keras.Sequential([start, *middle, layers.Dense(OUTPUTS)], **options)


def plain_and_pipelined(
    make: Callable[[], Any], *args: Any, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Yields a plain model twice, then another one with its PipelinedModel."""
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        model = make()
        yield model, PipelinedModel(model, *args, **options) if is_pipelined else model


def compiled(trained: Any, optimizer: Any = None, **options: Any) -> Any:
    """Compiles a model with a loss of squares, and returns it."""
    trained.compile(optimizer or keras.optimizers.SGD(0.01), loss="mse", **options)
    return trained


def after_a_step(trained: Any) -> list[Any]:
    """Trains a model on X and Y, and returns the step's results and the weights."""
    return [trained.train_on_batch(X, Y), *trained.get_weights()]


def fit(trained: Any, num_examples: int = 6, **options: Any) -> dict[str, Any]:
    """Trains on numbers, and returns the history."""
    x = numbers(num_examples, *trained.input_shape[1:])
    y = numbers(num_examples, *trained.output_shape[1:])
    return trained.fit(x, y, **{"shuffle": False, "verbose": 0, **options}).history


def assert_close(
    results: list[Any], rtol: float = 1e-5, atol: float = 1e-6, **options: Any
) -> None:
    """Compares two lists of arrays."""
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol, atol, **options)


def assert_same(results: list[Any]) -> None:
    """Compares two lists of arrays, in each byte but for zeros' signs."""
    assert_close(results, 0.0, 0.0)


def as_in_plain_keras(run: Callable[[Wrap], Any], *arguments: Any) -> None:
    """Compares the results of `run` for a plain model, and for a PipelinedModel."""
    results = []
    for wrap in (lambda model: model, lambda model: PipelinedModel(model, *arguments)):
        keras.utils.set_random_seed(1)
        results.append(run(wrap))
    assert_close(results, rtol=1e-4)
