"""A micro-batch draws its rows of the numbers that the whole mini-batch would draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.keras.row_seed import UNKNOWN
from lingvo_pipe.keras.state import CellScope

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
}


def _rows(draw: Callable, x: tf.Tensor, first: int, num_rows: int) -> np.ndarray:
    """Draws twice from a new seed, as a micro-batch; returns the second."""
    generator = keras.random.SeedGenerator(7)
    state = generator.state
    with CellScope(
        {id(state): state.value}, [state], tf.constant(first, tf.int64), num_rows
    ):
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
        with CellScope({id(state): state.value}, [state], first, UNKNOWN):
            keras.random.dropout(x, 0.4, seed=generator)
            return keras.random.dropout(x, 0.4, seed=generator)

    generator = keras.random.SeedGenerator(7)
    np.testing.assert_array_equal(rows(x[3:5], tf.constant(3, tf.int64)), whole[3:5])


def test_a_draw_without_rows_is_the_same_for_all() -> None:
    found = [
        _rows(
            lambda x, seed: keras.random.uniform((5,), seed=seed), tf.ones([2, 3]), i, 2
        )
        for i in (0, 4)
    ]
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("name", ["gamma", "truncated_normal", "beta"])
def test_other_draws_refuse_the_seed(name: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "gamma": {"shape": (2,), "alpha": 0.5},
        "truncated_normal": {"shape": (2,)},
        "beta": {"shape": (2,), "alpha": 0.5, "beta": 0.5},
    }
    options = cases[name]
    with pytest.raises((TypeError, ValueError)):
        _rows(
            lambda x, seed: getattr(keras.random, name)(**options, seed=seed),
            tf.ones(2),
            0,
            2,
        )
