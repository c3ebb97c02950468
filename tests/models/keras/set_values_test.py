"""Values that a Keras model's function sets are in memory until a task has them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.cells import model_function
from lingvo_pipe.keras.cells.model_function import built_model
from lingvo_pipe.models.keras.keras_task import KerasTask

calls: list[keras.Model] = []


def with_values() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.layers[0].set_weights([np.full((2, 1), 3.0), np.full(1, 4.0)])
    calls.append(model)
    return model


def test_they_are_freed_and_set_again_for_another_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cells have another seed than the params, and so another model.

    Once the function also made the model's cells each time that it set values.
    """
    made: list[keras.Model] = []

    def model_cells(model: keras.Model, **options: Any) -> Any:
        made.append(model)
        return original(model, **options)

    original = model_function.model_cells
    monkeypatch.setattr(model_function, "model_cells", model_cells)
    p = KerasTask.ParamsOf(with_values).Set(name="task", loss="mse", random_seed=7)
    assert built_model(with_values, {}, None).values
    for number in (2, 3):
        with tf.Graph().as_default():
            p.Copy().Instantiate()  # It is never run, and copies no values.
        kernel, bias = p.Copy().Instantiate().VariablePaths().values()
        np.testing.assert_array_equal(kernel, [[3.0], [3.0]])
        np.testing.assert_array_equal(bias, [4.0])
        assert not built_model(with_values, {}, None).values
        assert not built_model(with_values, {}, 7).values
        assert len(calls) == number
    assert made == calls[:2]
