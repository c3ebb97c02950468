"""Layers are frozen and thawed at any time, as in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import exhaustive

FROZEN = ["first", "norm", "middle"]
NUM_ACTIONS = 8


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, activation="tanh", name="first"),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            layers.Dense(6, activation="tanh", name="middle"),
            layers.Dense(2, name="last"),
        ]
    )


def _actions(seed: int) -> list[tuple[str, Any]]:
    """Returns what a user does: a freeze or thaw may come before or after compile."""
    random = np.random.default_rng(seed)
    actions: list[tuple[str, Any]] = [("compile", None)]
    is_compiled = True  # A step that is built keeps what was trainable.
    for _ in range(NUM_ACTIONS):
        name = random.choice(["trainable", "trainable", "compile", "fit", "evaluate"])
        if name == "trainable":
            layer = str(random.choice(FROZEN))
            actions.append((name, (layer, bool(random.integers(2)))))
            if not is_compiled:
                actions.append(("compile", None))
                is_compiled = True
        else:
            actions.append((name, None))
            is_compiled = name == "compile" or (is_compiled and name == "evaluate")
    return [*actions, ("fit", None), ("evaluate", None)]


def _results(actions: list[tuple[str, Any]], is_pipelined: bool) -> list[np.ndarray]:
    """Returns losses and weights after each fit."""
    random, model = np.random.default_rng(0), _model()
    x, y = (random.normal(1.0, 2.0, (12, n)).astype("float32") for n in (4, 2))
    trained: Any = PipelinedModel(model, devices=2) if is_pipelined else model
    results = []
    for name, value in actions:
        if name == "trainable":
            layer, is_trainable = value
            model.get_layer(layer).trainable = is_trainable
        elif name == "compile":
            trained.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
        elif name == "evaluate":
            results.append(trained.evaluate(x, y, batch_size=6, verbose=0))
            results.append(trained.predict(x, batch_size=6, verbose=0))
        else:
            history = trained.fit(
                x, y, batch_size=6, shuffle=False, epochs=2, verbose=0
            ).history
            weights = [weight.numpy() for weight in model.weights]
            results += [np.array(history["loss"]), *weights]
    return results


@pytest.mark.parametrize(
    "seed", [seed if seed in (8, 11) else exhaustive(seed) for seed in range(30)]
)
def test_freezing_counts_when_a_step_is_built(seed: int) -> None:
    actions = _actions(seed)
    plain, pipelined = (_results(actions, x) for x in (False, True))
    for expected, got in zip(plain, pipelined, strict=True):
        np.testing.assert_allclose(
            got, expected, rtol=1e-4, atol=1e-5, err_msg=str(actions)
        )
