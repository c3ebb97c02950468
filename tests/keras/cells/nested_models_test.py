"""Models within a model take what Keras gives them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_close, numbers, plain_and_pipelined
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _predictions(make: Any, x: Any) -> list[list[Any]]:
    models = plain_and_pipelined(make, devices=1)
    return [[trained.predict(x, verbose=0)] for _, trained in models]


def _of_two(given: Any) -> keras.Model:
    query, doc = (keras.Input((3,), name=name) for name in ("query", "doc"))
    difference = layers.Dense(2)(query) - 5.0 * layers.Dense(2)(doc)
    inputs = [keras.Input((3,), name=name) for name in "ab"]
    return keras.Model(inputs, keras.Model([query, doc], difference)(given(*inputs)))


@pytest.mark.parametrize(
    "given",
    [
        lambda a, b: [a, b],
        # Once they were swapped, in the order of their names.
        exhaustive(lambda a, b: {"query": a, "doc": b}),
        lambda a, b: {"query": a, "doc": b, "unused": a},
    ],
)
def test_inputs_go_by_their_names(given: Any) -> None:
    x = [numbers(4, 3), -numbers(4, 3)[::-1]]
    assert_close(_predictions(lambda: _of_two(given), x))


def test_inputs_get_dtype_and_rank_of_the_inner_model() -> None:
    """Once bytes overflowed."""

    def make() -> keras.Model:
        inner_input = keras.Input((1,))
        inner = keras.Model(inner_input, layers.Dense(2)(inner_input - 100))
        pixel = keras.Input((), dtype="uint8")
        return keras.Model(pixel, inner(pixel))

    assert_close(_predictions(make, np.array([1, 50, 200, 255], "uint8")))


def test_a_mask_may_be_given() -> None:
    def make() -> keras.Model:
        steps = keras.Input((None, 4))
        inner = keras.Model(steps, layers.GRU(3)(steps))
        x, valid = keras.Input((5, 4)), keras.Input((5,), dtype="bool")
        return keras.Model([x, valid], layers.Dense(2)(inner(x, mask=valid)))

    mask = np.arange(5)[None] < np.array([1, 2, 4, 5])[:, None]
    assert_close(_predictions(make, [numbers(4, 5, 4), mask]))


def test_a_model_that_passes_masks_on_is_refused() -> None:
    steps = keras.Input((None, 4))
    inner = keras.Model(steps, steps + layers.Dense(4)(steps), name="inner")
    inner.supports_masking = True
    tokens = keras.Input((5,), dtype="int32")
    x = inner(layers.Embedding(9, 4, mask_zero=True)(tokens))
    with fails(path="layer 'inner'"):
        PipelinedModel(keras.Model(tokens, layers.Dense(1)(x)))


class _Doubling(layers.Layer):
    """Takes an option from the models around it."""

    def __init__(self) -> None:
        super().__init__(name="doubling")
        self._register_call_context_args("doubles")

    def call(self, x: Any, doubles: bool = False) -> Any:
        return 2.0 * x if doubles else x


def test_an_option_of_a_model_within_is_refused() -> None:
    """It was left out, without a word."""
    inner: Any = keras.Sequential([keras.Input((3,)), _Doubling()], name="inner")
    inner._register_call_context_args("doubles")
    x = keras.Input((3,))
    model = keras.Model(x, layers.Dense(1)(inner(x, doubles=True)))
    with fails(path="model 'inner'", got=["doubles"]):
        PipelinedModel(model)
