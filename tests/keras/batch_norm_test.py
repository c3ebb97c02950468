"""Moving averages of batch normalization: the whole mini-batch's, also under masks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel

_ROWS, _TIME = 12, 5


class _Block(layers.Layer):
    """A composite layer that passes its input's mask on to batch normalization."""

    def __init__(self) -> None:
        super().__init__(name="block")
        self.norm = layers.BatchNormalization(name="inner")
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        self.norm.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.norm(x, training=training)


def _inputs() -> np.ndarray:
    x = np.random.default_rng(0).normal(2.0, 3.0, (_ROWS, _TIME, 3)).astype("float32")
    for i, row in enumerate(x):
        row[1 + i % _TIME :] = 0.0
    return x


def _statistics(num_micro_batches: int, *middle: Any) -> list[np.ndarray]:
    """Returns all state but weights after a step; M = 0 for plain Keras."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((_TIME, 3)), *middle, layers.Dense(2)])
    trained: Any = model
    if num_micro_batches:
        trained = PipelinedModel(model, num_micro_batches=num_micro_batches)
    trained.compile("sgd", loss="mse")
    y = np.ones((_ROWS, _TIME, 2))
    trained.fit(_inputs(), y, batch_size=_ROWS, shuffle=False, verbose=0)
    return [v.numpy() for v in model.non_trainable_variables]


@pytest.mark.parametrize("masks", [False, True])
def test_the_averages_are_the_mini_batchs(masks: bool) -> None:
    """Micro-batches have different numbers of valid timesteps."""
    found = []
    for number in (0, 1, 5):
        before = [layers.Masking()] if masks else []
        norm = layers.BatchNormalization(momentum=0.5)
        found.append(_statistics(number, *before, norm))
    for a, b, c in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
        np.testing.assert_allclose(c, a, rtol=1e-5)


def test_a_mask_of_an_inner_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="block"):
        _statistics(2, layers.Masking(), _Block())
    for a, b in zip(_statistics(0, _Block()), _statistics(3, _Block()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (lambda: layers.TimeDistributed(layers.BatchNormalization(name="n")), "moving"),
        (
            lambda: layers.BatchNormalization(name="renormed", renorm=True),
            "renormed",
        ),
    ],
)
def test_averages_that_would_differ_are_refused(layer: Any, named: str) -> None:
    if named == "renormed" and not hasattr(layers.BatchNormalization(), "renorm"):
        pytest.skip("This Keras has no renorm.")
    with pytest.raises(ValueError, match=named):
        _statistics(2, layer())
