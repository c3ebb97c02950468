"""Names of cells and variables: from the layers, valid, and alike for alike cells."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from lingvo_pipe.keras.model_cells import model_cells


class _Odd(layers.Layer):
    """A layer with weights that may not be called so, or twice the same."""

    def build(self, shape: Any) -> None:
        for name in ("values", "2nd", "w-x", "w x"):
            self.add_weight(name=name, shape=(2, 2))

    def call(self, x: Any) -> Any:
        return x


def _names(*own: Any) -> dict[str, list[str]]:
    model = keras.Sequential([keras.Input((3, 4)), *own])
    return {
        name: [v.name for v in calls.variables]
        for name, calls in model_cells(model).cells.items()
    }


def test_names_of_layers_and_weights() -> None:
    attention = layers.LSTM(3, return_sequences=True, name="read")
    found = _names(attention, layers.LayerNormalization(), layers.Dense(2, name="out"))
    of_cell = [f"lstm_cell_{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    assert found == {
        "read": [*of_cell, "seed_generator_state", "gamma", "beta"],
        "out": ["kernel", "bias"],
    }


def test_odd_names_become_valid() -> None:
    found = _names(_Odd(name="1. größe"))
    assert found == {"1_gr_e": ["v_values", "v_2nd", "w_x", "w_x_1"]}


def test_alike_cells_have_alike_names() -> None:
    first, second = _names(
        *(layers.LSTM(4, return_sequences=True) for _ in "ab")
    ).values()
    assert first == second


def test_a_layer_that_is_called_again_has_another_cell() -> None:
    dense = layers.Dense(4, name="shared")
    assert list(_names(dense, layers.ReLU(), dense)) == ["shared", "shared_call1"]
