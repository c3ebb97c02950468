"""A model that changes after it was wrapped runs as it is now, as in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import (
    OUTPUTS,
    assert_close,
    compiled,
    fit,
    numbers,
    plain_and_pipelined,
    sequential,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

X, Y = numbers(6, 4), numbers(6, OUTPUTS)


def _within(model: Any) -> keras.Model:
    return keras.Model(model.inputs, model(model.inputs[0]))


@pytest.mark.parametrize("wrap", [lambda model: model, exhaustive(_within)])
def test_a_layer_that_is_added_runs(wrap: Any) -> None:
    """Predictions had no softmax, but the saved model did."""
    inner: list[Any] = []

    def make() -> keras.Model:
        inner[:] = [sequential()]
        return wrap(inner[0])

    results = []
    for _, trained in plain_and_pipelined(make):
        inner[0].add(layers.Softmax())
        results.append([trained.predict(X, verbose=0)])
    assert_close(results)


def test_a_head_that_is_replaced_is_trained() -> None:
    """The old one was, and the new one was evaluated."""
    results = []
    for model, trained in plain_and_pipelined(lambda: sequential(layers.Dense(5))):
        compiled(trained)
        model.pop()
        keras.utils.set_random_seed(2)
        model.add(layers.Dense(OUTPUTS))
        losses = fit(trained)["loss"], trained.evaluate(X, Y, verbose=0)
        results.append([*losses, *model.get_weights()])
    assert_close(results)


def test_outputs_may_be_nested_in_another_way() -> None:
    """They were packed like the outputs of the layers before."""

    def make() -> keras.Model:
        lstm = layers.LSTM(2, return_state=True)
        return keras.Sequential([keras.Input((5, 4)), layers.Dense(6), lstm])

    results = []
    for model, trained in plain_and_pipelined(make):
        compiled(trained)
        model.pop()
        keras.utils.set_random_seed(2)
        model.add(layers.Dense(OUTPUTS))
        losses = fit(trained)["loss"]
        loss = trained.evaluate(numbers(6, 5, 4), numbers(6, 5, OUTPUTS), verbose=0)
        results.append([losses, loss, *model.get_weights()])
    assert_close(results)


@pytest.mark.exhaustive
def test_a_model_that_is_quantized_trains_what_is_left() -> None:
    """Kernels that the model had no more were trained."""
    results = []
    for model, trained in plain_and_pipelined(lambda: sequential(layers.Dense(8))):
        compiled(trained)
        losses = [fit(trained)["loss"]]
        model.quantize("int8")
        losses.append(fit(trained)["loss"])
        results.append([*losses, *model.get_weights()])
    assert_close(results)


def test_a_change_between_two_runs_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Plain Keras would run the old layers until it is compiled again."""
    model = sequential()
    trained = PipelinedModel(model)
    for _ in range(2):
        trained.predict(X, verbose=0)
    assert "has changed" not in caplog.text
    model.add(layers.Dense(2))  # A second cell, on the only device.
    expected = model.predict(X, verbose=0)
    assert_close([[expected], [trained.predict(X, verbose=0)]])
    assert "has changed" in caplog.text


def test_what_the_stages_cannot_run_is_refused() -> None:
    model = sequential(layers.Dense(5), name="own")
    trained = PipelinedModel(model, devices=2)
    model.add(layers.Dense(2))
    for _ in range(2):
        with fails(path="PipelinedModel.model"):
            trained.predict(X, verbose=0)
    for _ in range(3):
        model.pop()
    with fails(path="model 'own'"):
        trained.predict(X, verbose=0)
