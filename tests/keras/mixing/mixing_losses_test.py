"""Losses that mix examples are noticed, and no others of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.mixing.mixing import loss_mixes
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import exhaustive


class _Contrastive(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        similar = keras.ops.matmul(y_pred, keras.ops.transpose(y_pred))
        return -keras.ops.diagonal(keras.ops.log_softmax(similar))


class _Squares(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)


_LOSSES: list[tuple[Any, bool]] = [
    (_Contrastive(), True),
    (lambda y, z: keras.ops.std(y - z), True),
    (lambda y, z: keras.ops.mean(y - z), True),
    (_Squares(), True),  # A loss of the user, which may.
    (_Squares(reduction="sum"), True),
    ("mse", False),
    (keras.losses.MeanSquaredError(reduction="sum"), False),
    ("dice", True),
]


_MIXING = {"Circle", "Dice", "Tversky", "CosineSimilarity over examples"}
_OF_INTEGERS = {"Circle", "SparseCategoricalCrossentropy"}
_KERAS_LOSSES = {
    name: kind
    for name, kind in vars(keras.losses).items()
    if isinstance(kind, type) and name not in ("Loss", "CTC")
} | {"CosineSimilarity over examples": lambda: keras.losses.CosineSimilarity(axis=0)}


@pytest.mark.parametrize("name", _KERAS_LOSSES)
def test_losses_of_keras_that_mix_examples_are_known(name: str) -> None:
    loss = _KERAS_LOSSES[name]()
    y_pred = keras.KerasTensor((None, 64))
    is_of_integers = name in _OF_INTEGERS
    y_true = keras.KerasTensor((None,), "int32") if is_of_integers else y_pred
    assert loss_mixes(loss, [y_true, y_pred]) == (name in _MIXING)


@pytest.mark.parametrize("number", [exhaustive(1), 2])
def test_losses_that_mix_examples_are_reported(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    x = keras.Input((5,))
    hidden = layers.Dense(2)(x)  # One kernel, and so one cell.
    model = keras.Model(x, [layers.ReLU()(hidden) for _ in _LOSSES])
    trained: Any = PipelinedModel(model, num_micro_batches=number, exact_losses=False)
    trained.compile("sgd", loss=[loss for loss, _ in _LOSSES])
    with caplog.at_level("WARNING", "absl"):
        trained.evaluate(np.ones((4, 5)), [np.ones((4, 2))] * len(_LOSSES), verbose=0)
    assert len(caplog.records) == (number - 1) * sum(mixes for _, mixes in _LOSSES)
