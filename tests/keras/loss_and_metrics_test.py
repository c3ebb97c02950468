"""Every metric is exact, whether its state adds up over micro-batches or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import exhaustive


class Range(keras.metrics.Metric):
    """A metric of one's own, whose state is no sum."""

    def __init__(self) -> None:
        super().__init__(name="range")
        self.low = self.add_variable((), "zeros", name="low")
        self.high = self.add_variable((), "zeros", name="high")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.low.assign(tf.minimum(self.low, tf.reduce_min(y_pred)))
        self.high.assign(tf.maximum(self.high, tf.reduce_max(y_pred)))

    def result(self) -> Any:
        return self.high - self.low


def dice_coefficient(y_true: Any, y_pred: Any) -> Any:
    """Returns one number for all examples, which is no mean over them."""
    return 2 * tf.reduce_sum(y_true * y_pred) / tf.reduce_sum(y_true + y_pred)


def _of_keras(*names: str) -> Callable[[], list[Any]]:
    return lambda: [getattr(keras.metrics, name)() for name in names]


# By the kind of targets and by whether all states add up.
_METRICS: dict[str, Callable[[], list[Any]]] = {
    "mixed": lambda: [
        *_of_keras("AUC", "Precision", "RootMeanSquaredError", "R2Score")(),
        keras.metrics.F1Score(average="micro"),
    ],
    "numbers": lambda: [
        *_of_keras("MeanSquaredError", "RootMeanSquaredError", "R2Score")(),
        *_of_keras("MeanAbsoluteError", "CosineSimilarity", "LogCoshError")(),
    ],
    "losses": lambda: [
        keras.losses.dice,
        keras.metrics.CosineSimilarity(axis=0),
    ],
    "functions": lambda: [
        dice_coefficient,
        lambda y, z: tf.reduce_mean(tf.abs(y - z), -1),
        keras.metrics.MeanMetricWrapper(dice_coefficient, name="wrapped"),
    ],
    "numbers, own": lambda: [Range(), "mse"],
    "numbers, correlation": lambda: [keras.metrics.PearsonCorrelation(axis=0)],
    "classes": lambda: [
        *_of_keras("AUC", "Precision", "Recall", "BinaryAccuracy", "TruePositives")(),
        keras.metrics.F1Score(average="micro"),
        keras.metrics.SensitivityAtSpecificity(0.5),
        keras.metrics.BinaryIoU(threshold=0.5),
    ],
}
if not hasattr(keras.metrics, "PearsonCorrelation"):
    del _METRICS["numbers, correlation"]


def _results(
    metrics: list[Any], activation: str | None, y: np.ndarray, pipelined: bool
) -> Any:
    keras.utils.set_random_seed(5)
    model: Any = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(2, activation=activation),
        ]
    )
    if pipelined:
        model = PipelinedModel(model, devices=2, num_micro_batches=3)
    model.compile("sgd", loss="mse", metrics=metrics, weighted_metrics=["mae"])
    x = np.random.default_rng(1).normal(size=(20, 6)).astype("float32")
    weights = np.linspace(0.2, 2.0, 20).astype("float32")
    fit = model.fit(x, y, sample_weight=weights, batch_size=8, shuffle=False, verbose=0)
    return fit.history, model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("mixed", "functions", "losses") else exhaustive(name)
        for name in _METRICS
    ],
)
def test_it_is_as_in_plain_keras(name: str) -> None:
    random = np.random.default_rng(2)
    if name in ("mixed", "classes", "functions", "losses"):
        activation, y = "sigmoid", random.integers(0, 2, (20, 2)).astype("float32")
    else:
        activation, y = None, random.normal(size=(20, 2)).astype("float32")
    plain, found = (
        _results(_METRICS[name](), activation, y, piped) for piped in (False, True)
    )
    for expected, given in zip(plain, found, strict=True):
        for wanted, value in zip(expected.values(), given.values(), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6)


def test_masks_and_weights_reach_metrics_of_the_whole_outputs() -> None:
    found = []
    for pipelined in (False, True):
        keras.utils.set_random_seed(5)
        tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4], [2, 2, 2, 0]])
        x = keras.Input((4,), dtype="int32")
        y = keras.layers.Embedding(5, 3, mask_zero=True)(x)
        model: Any = keras.Model(x, keras.layers.Dense(2)(y))
        if pipelined:
            model = PipelinedModel(model, num_micro_batches=3)
        model.compile("sgd", loss="mse", weighted_metrics=[Range(), "mae"])
        weights = np.linspace(0.2, 2.0, 16).reshape(4, 4)
        fit = model.fit(tokens, np.ones((4, 4, 2)), sample_weight=weights, verbose=0)
        found.append(fit.history)
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=2e-5, err_msg=name)
