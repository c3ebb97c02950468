"""The optimizer that the user holds is the one that trains, as in plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel

Change = Callable[[keras.Model, keras.Optimizer], None]
_RANDOM = np.random.default_rng(0)
_X, _Y = (_RANDOM.normal(size=(16, n)).astype("float32") for n in (6, 2))


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", name="first"),
            layers.Dense(2, name="last"),
        ]
    )


def _fit(model: Any) -> None:
    model.fit(_X, _Y, batch_size=8, epochs=2, shuffle=False, verbose=0)


def _decay_no_bias(model: keras.Model, optimizer: keras.Optimizer) -> None:
    optimizer.exclude_from_weight_decay(var_names=["bias"])


def _decay_not_the_last(model: keras.Model, optimizer: keras.Optimizer) -> None:
    optimizer.exclude_from_weight_decay(var_list=model.get_layer("last").weights)


def _decay_not_the_first(model: keras.Model, optimizer: keras.Optimizer) -> None:
    optimizer.exclude_from_weight_decay(var_names=["first"])  # A layer's name.


@pytest.mark.parametrize(
    "exclude", [_decay_no_bias, _decay_not_the_last, _decay_not_the_first]
)
@pytest.mark.parametrize("before", [True, False])
def test_weight_decay_leaves_out_what_it_is_told_to(
    exclude: Change, before: bool
) -> None:
    """A built optimizer used to be copied, without what it had been told."""
    weights = []
    for is_pipelined in (False, True):
        model, optimizer = _model(), keras.optimizers.AdamW(0.01, weight_decay=0.5)
        trained: Any = model
        if before:
            exclude(model, optimizer)
            optimizer.build(model.trainable_variables)
        if is_pipelined:
            trained = PipelinedModel(model, devices=2)
        if not before:
            exclude(model, optimizer)
        trained.compile(optimizer, loss="mse")
        _fit(trained)
        weights.append(model.get_weights())
    for plain, pipelined in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, pipelined)


def test_an_optimizer_goes_on_after_the_variables_have_moved() -> None:
    """Its state goes on, and the learning rate that the user sets counts."""
    weights = []
    for is_pipelined in (False, True):
        trained: Any = _model()
        optimizer = keras.optimizers.Adam(0.01)
        trained.compile(optimizer, loss="mse")
        _fit(trained)
        if is_pipelined:
            trained = PipelinedModel(trained, devices=2)
        assert trained.optimizer is optimizer
        optimizer.learning_rate = 0.1
        _fit(trained)
        weights.append([v.numpy() for v in [*trained.variables, *optimizer.variables]])
        if is_pipelined:
            slots = [v for v in optimizer.variables if "last" in v.path]
            assert {v.value.device[-5:] for v in slots} == {"CPU:1"}
    for plain, pipelined in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, pipelined)


def test_schedule_free_adamw_is_what_keras_runs_eagerly() -> None:
    """Keras's own graph sets its slots to the weights again at each step."""
    if not hasattr(keras.optimizers, "ScheduleFreeAdamW"):
        pytest.skip("This Keras has no ScheduleFreeAdamW.")
    weights = []
    for is_pipelined in (False, True):
        model = _model()
        trained: Any = PipelinedModel(model, devices=2) if is_pipelined else model
        optimizer = keras.optimizers.ScheduleFreeAdamW(0.05)
        trained.compile(optimizer, loss="mse", run_eagerly=not is_pipelined)
        _fit(trained)
        weights.append(model.get_weights())
    for plain, pipelined in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, pipelined, rtol=1e-5, atol=1e-6)
