"""Cells: what later ones need is passed on, and names are valid and from the layers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.cells.calls import GraphTensor, KerasCall, ModelCalls
from lingvo_pipe.keras.cells.model_cells import cut, model_cells


def _random_calls(seed: int) -> ModelCalls:
    draw = random.Random(seed)

    def tensors(most: int) -> tuple[GraphTensor, ...]:
        number = draw.randint(1, most)
        return tuple(GraphTensor(len(known) + i, None) for i in range(number))

    known: list[GraphTensor] = []
    inputs = tensors(3)
    known += inputs
    calls = []
    for _ in range(draw.randint(1, 12)):
        weights = [np.ones((2, 2))] * (draw.random() < 0.4)
        taken = tuple(draw.choices(known, k=draw.randint(1, 3)))
        made = tensors(2)
        known += made
        calls.append(KerasCall(SimpleNamespace(weights=weights), taken, {}, made))
    return ModelCalls(inputs, (*calls,), (*draw.choices(known, k=draw.randint(1, 3)),))


@pytest.mark.parametrize(
    "seeds", [range(i, i + 50) for i in range(0, 200, 50)], ids=str
)
def test_cells_compute_the_graph_from_what_they_are_given(seeds: range) -> None:
    for model in map(_random_calls, seeds):
        cells = cut(model)
        assert len(cells) == max(1, sum(call.has_kernel for call in model.calls))
        stop, passed_on = 0, model.inputs
        for cell in cells:
            assert (cell.start, cell.given) == (stop, passed_on)
            assert cell.start == 0 or model.calls[cell.start].has_kernel
            known = set(cell.given)
            for call in model.calls[cell.start : cell.stop]:
                assert known.issuperset(call.taken)
                known.update(call.made)
            assert known.issuperset(cell.kept)
            stop, passed_on = cell.stop, cell.kept
            later = {x for call in model.calls[stop:] for x in call.taken}
            assert later.union(model.outputs).issuperset(cell.kept)
            assert cell is cells[-1] or len(set(cell.kept)) == len(cell.kept)
        assert (stop, passed_on) == (len(model.calls), model.outputs)


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
    of_cell = [f"lstm_cell_{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    assert _names(
        attention, layers.LayerNormalization(), layers.Dense(2, name="out")
    ) == {
        "read": [*of_cell, "seed_generator_state", "gamma", "beta"],
        "out": ["kernel", "bias"],
    }
    odd = _names(_Odd(name="1. größe"))
    assert odd == {"1_gr_e": ["v_values", "v_2nd", "w_x", "w_x_1"]}
    alike = _names(*(layers.LSTM(4, return_sequences=True) for _ in "ab"))
    assert len({tuple(names) for names in alike.values()}) == 1


def test_a_layer_that_is_called_again_has_another_cell() -> None:
    dense = layers.Dense(4, name="shared")
    assert list(_names(dense, layers.ReLU(), dense)) == ["shared", "shared_call1"]
