"""Actions of users in any order: pipelined, they leave what plain Keras leaves.

They freeze and thaw, compile all or the optimizer alone, fit with weights, validation
and smaller last mini-batches, take steps by hand, evaluate, predict with a part of the
model, train another model of the same layers, save, load, and wrap the model again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import seeds

_NUM_SEEDS = 12
_NUM_ACTIONS = 10
_FROZEN = ("first", "norm", "middle")
_AVERAGES: list[dict[str, Any]] = [
    {},
    {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    {"gradient_accumulation_steps": 2},
]
_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(1.0, 2.0, (12, 4)).astype("float32")
_Y = _RANDOM.normal(1.0, 2.0, (12, 2)).astype("float32")
_BATCHES: dict[str, Any] = {"batch_size": 6, "verbose": 0}


def _model() -> keras.Model:
    x = start = keras.Input((4,))
    for layer in (
        layers.Dense(6, activation="tanh", name="first"),
        layers.BatchNormalization(momentum=0.5, name="norm"),
        layers.Dropout(0.2, seed=1),
        layers.Dense(6, activation="tanh", name="middle"),
        layers.Dense(2, name="last"),
    ):
        x = layer(x)
    return keras.Model(start, x)


class _User:
    """A user of a model, by plain Keras or by pipelines of 1 to 3 devices."""

    def __init__(self, seed: int, folder: Path, is_pipelined: bool):
        keras.utils.set_random_seed(seed)
        self._random = np.random.default_rng(seed)
        self._folder, self._is_pipelined = folder, is_pipelined
        self._has_trained = False  # Since it was compiled.
        self._has_schedule = False  # Of the learning rate.
        self._saves_loss = True
        # Keras fails if it is given weights of two ranks.
        self._weights = [(12,), (12, 1)][self._random.integers(2)]
        self.results: list[Any] = []
        self.model: Any = None
        self._begin(_model())
        self.compile()

    def act(self, name: str) -> None:
        """Does what a method of this name says, and notes all weights."""
        getattr(self, name)()
        self.results += [v.numpy() for v in self.model.variables]

    def compile(self) -> None:
        kind = str(self._random.choice(["SGD", "AdamW"]))
        options = {"SGD": {"momentum": 0.9}, "AdamW": {"epsilon": 0.01}}[kind]
        options |= _AVERAGES[self._random.integers(len(_AVERAGES))]
        self._has_schedule = self._chance()
        rate: Any = 0.02
        if self._has_schedule:
            rate = keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.9)
        optimizer = getattr(keras.optimizers, kind)(rate, **options)
        if self._chance():
            optimizer.exclude_from_weight_decay(var_names=["bias", "middle"])
        self.trained.compile(optimizer, loss="mse", metrics=["mae"])
        self._has_trained, self._saves_loss = False, True

    def compile_optimizer(self) -> None:
        """Compiles with the loss and metrics from before, which no file would have."""
        self.trained.compile(keras.optimizers.SGD(0.02))
        self._has_trained = self._has_schedule = self._saves_loss = False

    def freeze_or_thaw(self) -> None:
        """Freezes or thaws a layer, or a part of the model."""
        layer: Any = self.model.get_layer(str(self._random.choice(_FROZEN)))
        if self._random.random() < 0.2:
            layer = self._part
        layer.trainable = self._chance()
        # A step that is built keeps what was trainable, and so does an optimizer.
        if self._has_trained or self.trained.optimizer.built:
            self.compile()

    def fit(self) -> None:
        options: dict[str, Any] = {"batch_size": int(self._random.integers(4, 7))}
        if self._chance():
            options["sample_weight"] = self._random.uniform(0.0, 2.0, self._weights)
        if self._chance():
            options.update(validation_data=(_X, _Y), validation_freq=[2])
        options.update(shuffle=False, epochs=2, verbose=0)
        history = self.trained.fit(_X, _Y, **options).history
        self.results += [np.array(x) for x in history.values()]
        self._has_trained = True

    def train_on_batch(self) -> None:
        self.results += self.trained.train_on_batch(_X[:6], _Y[:6])
        self._has_trained = True

    def train_by_hand(self) -> None:
        """Takes a step as a user's own loop does."""
        self.results.append(self.trained.train_step((_X[:6], _Y[:6]))["loss"])
        self._has_trained = True

    def evaluate(self) -> None:
        self.results += self.trained.evaluate(_X, _Y, **_BATCHES)

    def predict(self) -> None:
        """Predicts by the model, and by a part of it that predicted before."""
        self.results.append(self.trained.predict(_X, **_BATCHES))
        self.results.append(self._part.predict(_X, **_BATCHES))

    def set_weights(self) -> None:
        weights = self.model.get_weights()
        self.trained.set_weights([0.9 * x for x in weights])

    def set_learning_rate(self) -> None:
        """Changes the optimizer that trains."""
        rate = self._random.uniform(0.001, 0.02)
        if not self._has_schedule:
            self.trained.optimizer.learning_rate = rate

    def wrap(self) -> None:
        """Wraps the model again, or compiles the plain one as that does."""
        devices = self._devices()
        if self._is_pipelined:
            self.trained = PipelinedModel(self.model, devices=devices)
        else:
            self.model.compile(self.model.optimizer, loss="mse", metrics=["mae"])
        self._after_moves()
        self._has_trained, self._saves_loss = False, True

    def save_and_load(self) -> None:
        """Saves the model with its optimizer, and loads both."""
        path = self._folder / "model.keras"
        self.trained.save(path)
        self._begin(keras.models.load_model(path))
        self._has_trained = False
        if not self._saves_loss:
            self.compile()

    def load_weights(self) -> None:
        """Trains, and goes back to the weights before."""
        path = self._folder / "model.weights.h5"
        self.trained.save_weights(path)
        self.train_on_batch()
        self.trained.load_weights(path)

    def train_other(self) -> None:
        """Trains another model of the same layers."""
        self.results.append(self._other.train_on_batch(_X, _Y))
        self._part.compile()  # Both may have moved the weights.

    def _begin(self, model: keras.Model) -> None:
        self.model = self.trained = model
        middle = model.get_layer("middle").output
        self._part = keras.Model(model.inputs, middle)
        self._other: Any = keras.Model(model.inputs, layers.Dense(2)(middle))
        self._part.predict(_X, verbose=0)  # Its function has the storage of now.
        devices, others = self._devices(), self._devices()
        is_other_pipelined = self._chance()
        if self._is_pipelined:
            self.trained = PipelinedModel(model, devices=devices)
            if is_other_pipelined:
                self._other = PipelinedModel(self._other, devices=min(others, 3))
        self._after_moves()

    def _after_moves(self) -> None:
        """Compiles models whose functions have the storage from before."""
        self._part.compile()
        self._other.compile(keras.optimizers.SGD(0.02), loss="mse")

    def _devices(self) -> int:
        return int(self._random.integers(1, 4))

    def _chance(self) -> bool:
        return bool(self._random.integers(2))


_ACTIONS = [
    name
    for name, value in vars(_User).items()
    if callable(value) and not name.startswith("_") and name != "act"
]


@pytest.mark.parametrize("seed", seeds(_NUM_SEEDS))
def test_habits_are_plain_keras_own(seed: int, tmp_path: Path) -> None:
    plain, pipelined = (_User(seed, tmp_path, x) for x in (False, True))
    random = np.random.default_rng([seed, 1])
    actions = [str(x) for x in random.choice(_ACTIONS, _NUM_ACTIONS)]
    for i, action in enumerate([*actions, "fit", "predict"]):
        for user in (plain, pipelined):
            keras.utils.set_random_seed(i)
            user.act(action)
        for expected, got in zip(plain.results, pipelined.results, strict=True):
            np.testing.assert_allclose(
                got, expected, rtol=1e-3, atol=1e-5, err_msg=str(actions[: i + 1])
            )
