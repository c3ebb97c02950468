"""The comparison with plain Keras finds what is wrong, and only that."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.core.errors import UserAssertionError
from lingvo_pipe.testing.pipelined_equals_plain import (
    TrainedModel,
    assert_pipelined_equals_plain,
    differences,
)
from tests.support.errors import fails

_RANDOM = np.random.default_rng(0)
_DATA = [_RANDOM.normal(size=(16, n)).astype("float32") for n in (6, 2)]
_COMPILED = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}


def _model(*middle: keras.Layer) -> keras.Model:
    kernels = layers.Dense(8, activation="tanh", name="first"), layers.Dense(2)
    return keras.Sequential([keras.Input((6,)), kernels[0], *middle, kernels[1]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [4, 1])
def test_batch_norm_of_micro_batches_is_another_one(number: int) -> None:
    """The first array that differs is named."""
    with contextlib.nullcontext() if number == 1 else fails(UserAssertionError) as info:
        assert_pipelined_equals_plain(
            lambda: _model(layers.BatchNormalization()),
            _DATA,
            _COMPILED,
            num_micro_batches=[number],
            devices=[1],
        )
    assert info is None or "first/kernel" in info.value.path


@pytest.mark.parametrize("path", ["compile_args", "devices", "schedule"])
def test_arguments_that_are_refused(path: str) -> None:
    """An optimizer would train the second model with the slots of the first one."""
    with_object = {**_COMPILED, "optimizer": keras.optimizers.Adam()}
    refused: Any = {"compile_args": with_object, "devices": [], "schedule": "gpipe"}
    arguments = {"make_model": _model, "data": _DATA, "compile_args": _COMPILED}
    with fails(path=path):
        assert_pipelined_equals_plain(**{**arguments, path: refused[path]})


@pytest.mark.parametrize(
    ("a", "b", "relative"),
    [
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([0.0, 0.0], [0.0, 1e-9], 1e-5),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 1.0], np.inf),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_differences_are_parts_of_the_largest_number(
    a: list[float], b: list[float], relative: float
) -> None:
    expected, got = (TrainedModel("", [("x", np.array(x))]) for x in (a, b))
    (difference,) = differences(expected, got)
    assert difference.relative == pytest.approx(relative)


@pytest.mark.exhaustive
def test_names_may_have_another_number_of_digits() -> None:
    """Losses were compared in the order of their names: ..._10_loss, ..._9_loss."""
    numbers = iter(range(7, 100))

    def make() -> keras.Model:
        x = keras.Input((6,))
        heads = [layers.Dense(2, name=f"head_{next(numbers)}") for _ in range(2)]
        return keras.Model(x, [head(x) for head in heads])

    assert_pipelined_equals_plain(
        make,
        (_DATA[0], [_DATA[1], 3 * _DATA[1]]),
        {"optimizer": "adam", "loss": ["mse", "mse"]},
        devices=[1],
        num_micro_batches=[1],
    )
