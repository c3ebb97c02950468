"""A micro-batch draws its rows of the numbers that the whole mini-batch would draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.keras.cells.row_seed import UNKNOWN, known_draws
from lingvo_pipe.keras.cells.state import CellScope
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.toy_models import assert_same, numbers
from tests.support.cases import exhaustive

_DRAWS: dict[str, Callable[[Any, keras.random.SeedGenerator], Any]] = {
    "uniform": lambda x, seed: keras.random.uniform(x.shape, -2.0, 3.0, seed=seed),
    "normal": lambda x, seed: keras.random.normal(x.shape, 1.0, 2.0, seed=seed),
    "integers": lambda x, seed: keras.random.randint(x.shape, 3, 90, seed=seed),
    "long integers": lambda x, seed: keras.random.randint(
        x.shape, 3, 90, dtype="int64", seed=seed
    ),
    "wide": lambda x, seed: keras.random.uniform(x.shape, dtype="float64", seed=seed),
    "short": lambda x, seed: keras.random.normal(x.shape, dtype="bfloat16", seed=seed),
    "dropout": lambda x, seed: keras.random.dropout(x, 0.4, seed=seed),
    "channels": lambda x, seed: keras.random.dropout(
        x, 0.4, noise_shape=(None, *(1 for _ in x.shape[1:])), seed=seed
    ),
    "category": lambda x, seed: _categories(x, 1, seed),
    "3 categories": lambda x, seed: _categories(x, 3, seed),
    "8 categories": lambda x, seed: _categories(x, 8, seed),
}


def _categories(x: tf.Tensor, number: int, seed: keras.random.SeedGenerator) -> Any:
    logits = tf.cumsum(tf.reshape(x, [x.shape[0], -1]), axis=1)
    return keras.random.categorical(logits, number, seed=seed)


def _rows(
    draw: Callable, x: tf.Tensor, first: int, num_rows: int, belongs: bool = True
) -> np.ndarray:
    """Draws twice from a new seed, as a micro-batch; returns the second."""
    generator = keras.random.SeedGenerator(7)
    state = generator.state
    scope = CellScope(
        {id(state): state.value}, [state], tf.constant(first, tf.int64), num_rows
    )
    with scope, known_draws([belongs] * 2):
        draw(x, generator)
        return np.asarray(draw(x, generator))


@pytest.mark.parametrize("shape", [(6, 8), (6, 3), (6,), (6, 5, 7)])
@pytest.mark.parametrize("name", _DRAWS)
def test_rows_are_those_of_the_mini_batch(name: str, shape: tuple[int, ...]) -> None:
    draw, x = _DRAWS[name], tf.ones(shape)
    generator = keras.random.SeedGenerator(7)
    draw(x, generator)
    expected = np.asarray(draw(x, generator))
    for first, number in ((0, 6), (0, 2), (2, 3), (5, 1)):
        found = _rows(draw, x[first : first + number], first, number)
        np.testing.assert_array_equal(found, expected[first : first + number])


@pytest.mark.parametrize("width", [8, 3])
def test_a_number_of_rows_that_only_a_run_decides(width: int) -> None:
    x = tf.ones([6, width])
    whole = _rows(_DRAWS["dropout"], x, 0, 6)

    @tf.function(
        input_signature=[tf.TensorSpec([None, width]), tf.TensorSpec([], tf.int64)]
    )
    def rows(x: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        state = generator.state
        scope = CellScope({id(state): state.value}, [state], first, UNKNOWN)
        with scope, known_draws([True, True]):
            keras.random.dropout(x, 0.4, seed=generator)
            return keras.random.dropout(x, 0.4, seed=generator)

    generator = keras.random.SeedGenerator(7)
    np.testing.assert_array_equal(rows(x[3:5], tf.constant(3, tf.int64)), whole[3:5])


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, seed: keras.random.uniform((5,), seed=seed),
        *(_DRAWS[name] for name in ("category", "3 categories", "8 categories")),
    ],
)
def test_a_draw_without_rows_is_the_same_for_all(draw: Callable) -> None:
    found = [_rows(draw, tf.ones([2, 3]), i, 2, belongs=False) for i in (0, 4)]
    assert_same(found)


@pytest.mark.parametrize("name", ["gamma", "truncated_normal", "beta"])
def test_other_draws_refuse_the_seed(name: str) -> None:
    draw, parameters = getattr(keras.random, name), {"gamma": [0.5], "beta": [0.5] * 2}
    with pytest.raises((TypeError, ValueError)):
        _rows(
            lambda x, seed: draw((2,), *parameters.get(name, []), seed=seed),
            *(tf.ones(2), 0, 2),
        )


def _compare(make: Callable[[], Any], x: Any, y: Any, number: int) -> None:
    compiled = {"optimizer": "sgd", "loss": "mse"}
    assert_pipelined_equals_plain(
        make, [x, y], compiled, devices=[1], num_micro_batches=[number]
    )


class _Noise(layers.Layer):
    """Adds numbers of a shape to a kernel, or to what it makes of the examples.

    Without a kernel, it adds them to the examples.
    """

    def __init__(
        self,
        shape: Callable[[Any], Any],
        on_kernel: bool = False,
        has_kernel: bool = True,
    ):
        super().__init__()
        self._shape, self._on_kernel = shape, on_kernel
        self._has_kernel = has_kernel
        self._generator = keras.random.SeedGenerator(5)

    def build(self, shape: Any) -> None:
        if self._has_kernel:
            self.kernel = self.add_weight(shape=(2, 2), name="kernel")

    def call(self, x: Any) -> Any:
        noise = keras.random.normal(self._shape(x), seed=self._generator)
        if self._on_kernel:
            return keras.ops.matmul(x, self.kernel + noise)
        product = keras.ops.matmul(x, self.kernel) if self._has_kernel else x
        return product + noise


_NOISES: dict[str, Callable[[], Any]] = {
    "a kernel's": lambda: _Noise(lambda x: (2, 2), on_kernel=True),
    "alike for all": lambda: _Noise(lambda x: (1, 2), has_kernel=False),
    "each example's": lambda: _Noise(
        lambda x: (keras.ops.shape(x)[0], 2), has_kernel=False
    ),
    "dropout's, alike": lambda: layers.Dropout(0.5, noise_shape=(1, 2), seed=3),
    "dropout's, each": lambda: layers.Dropout(0.5, noise_shape=(None, 1), seed=3),
}


@pytest.mark.parametrize(
    ("name", "num_micro_batches"),
    [
        ("all", 4),
        exhaustive("all", 8),
        *(exhaustive(name, number) for name in _NOISES for number in (1, 4, 8)),
    ],
)
def test_a_dimension_is_told_apart_from_its_size(
    name: str, num_micro_batches: int
) -> None:
    """Micro-batches of 8, 2 and 1: once, a kernel's 2 rows passed for examples."""
    makers = _NOISES.values() if name == "all" else [_NOISES[name]]
    _compare(
        lambda: keras.Sequential(
            [keras.Input((2,)), *(make() for make in makers), layers.Dense(2)]
        ),
        *(numbers(8, 2), numbers(8, 2)[::-1]),
        num_micro_batches,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [None, 4])
def test_timesteps_are_no_examples(length: int | None) -> None:
    """Micro-batches have 4 examples, and each sequence 4 timesteps."""
    noise = lambda x: (keras.ops.shape(x)[1], 2)  # noqa: E731
    _compare(
        lambda: keras.Sequential(
            [keras.Input((length, 2)), _Noise(noise), layers.Dense(2)]
        ),
        *(numbers(8, 4, 2), numbers(8, 4, 2)[::-1]),
        2,
    )


class _Up(layers.Layer):
    """Joins an image of half the size, which only fits sizes that belong together."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = layers.Dropout(0.3, seed=1)

    def call(self, pair: Any, training: bool = False) -> Any:
        small, large = pair
        wide = keras.ops.repeat(keras.ops.repeat(small, 2, axis=1), 2, axis=2)
        joined = keras.ops.concatenate([wide, large], axis=-1)
        return self.dropout(joined, training=training)


@pytest.mark.exhaustive
def test_sizes_that_no_trial_fits() -> None:
    """Both images, of any size, were tried with the same one."""
    images = numbers(8, 8, 8, 1)

    def make() -> keras.Model:
        x = keras.Input((None, None, 1))
        small = layers.Conv2D(2, 3, strides=2, padding="same")(x)
        return keras.Model(x, layers.Conv2D(1, 1)(_Up()([small, x])))

    _compare(make, images, images, 4)


def test_draws_whose_examples_are_another_dimension_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Time-major dropout gave each micro-batch the same numbers."""
    x = start = keras.Input((5, 2))
    x = keras.ops.transpose(layers.Dense(2)(x), (1, 0, 2))
    x = keras.ops.transpose(layers.Dropout(0.5, name="drop")(x), (1, 0, 2))
    PipelinedModel(keras.Model(start, layers.Dense(2)(x)), num_micro_batches=2)
    assert "'drop' may mix" in caplog.text


def test_a_dimension_that_holds_more_than_the_examples_is_refused() -> None:
    """Each micro-batch drew the same numbers for twice its examples."""
    noise = lambda x: (keras.ops.shape(x)[0], 2)  # noqa: E731
    image = keras.Input((2,))
    twice = keras.ops.concatenate([image, image], axis=0)
    made = keras.ops.split(_Noise(noise)(twice), 2)[0]
    model = PipelinedModel(keras.Model(image, layers.Dense(1)(made)))
    model.compile(loss="mse")
    with pytest.raises(UserTypeError, match="8, 2"):  # Keras makes it anew, of text.
        model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
