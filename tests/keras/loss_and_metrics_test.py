"""Every metric is exact, whether its state adds up over micro-batches or not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.toy_models import assert_close, plain_and_pipelined

_RANDOM = np.random.default_rng(2)
_X = _RANDOM.normal(size=(20, 6)).astype("float32")
_Y = _RANDOM.integers(0, 2, (20, 2)).astype("float32")
_WEIGHTS = np.linspace(0.2, 2.0, 20).astype("float32")


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


def _of_keras(*names: str, **options: Any) -> list[Any]:
    return [getattr(keras.metrics, name)(**options) for name in names]


def _metrics() -> list[Any]:
    """Returns metrics that are sums over examples, losses, and functions."""
    return [
        *_of_keras("AUC", "RootMeanSquaredError", "R2Score"),
        *_of_keras("F1Score", average="micro"),
        keras.losses.dice,
        *_of_keras("CosineSimilarity", axis=0),
        dice_coefficient,
        lambda y, z: tf.reduce_mean(tf.abs(y - z), -1),
        keras.metrics.MeanMetricWrapper(dice_coefficient, name="wrapped"),
    ]


def test_they_are_as_in_plain_keras() -> None:
    assert_pipelined_equals_plain(
        lambda: keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, activation="relu"),
                layers.Dense(2, activation="sigmoid"),
            ]
        ),
        (_X, _Y, _WEIGHTS),
        lambda: {
            "optimizer": "sgd",
            "loss": "mse",
            "metrics": _metrics(),
            "weighted_metrics": ["mae"],
        },
        batch_size=10,  # One size: each is traced anew.
        epochs=1,
        devices=(2,),
        num_micro_batches=(3,),
    )


def _two_outputs() -> keras.Model:
    inputs = keras.Input((6,))
    hidden = layers.Dense(4, activation="relu")(inputs)
    outputs = {name: layers.Dense(2, name=name)(hidden) for name in "ab"}
    return keras.Model(inputs, outputs)


_TARGETS = {"a": _Y, "b": 3 * _Y}
_LOSSES = {"a": "mse", "b": "mae"}


def test_a_step_has_the_loss_of_each_output() -> None:
    results = []
    for model, trained in plain_and_pipelined(_two_outputs, 2, 3):
        trained.compile("sgd", loss=_LOSSES)
        results.append([*trained.train_on_batch(_X, _TARGETS), *model.get_weights()])
    assert_close(results)


def test_a_metric_of_two_outputs_counts_each_once() -> None:
    """It was updated by the sum over both, once for each of them."""
    results = []
    for _, trained in plain_and_pipelined(_two_outputs, 2, 3):
        shared = keras.metrics.TruePositives()
        trained.compile("sgd", loss=_LOSSES, metrics={"a": shared, "b": shared})
        trained.fit(_X, _TARGETS, verbose=0)
        results.append([float(shared.result())])
    assert results[0][0] > 0.0
    assert_close(results)


def test_masks_and_weights_reach_metrics_of_the_whole_outputs() -> None:
    tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4], [2, 2, 2, 0]])

    def make() -> keras.Model:
        embedding = layers.Embedding(5, 3, mask_zero=True)
        inputs = keras.Input((4,), dtype="int32")
        return keras.Sequential([inputs, embedding, layers.Dense(2)])

    assert_pipelined_equals_plain(
        make,
        (tokens, np.ones((4, 4, 2)), np.linspace(0.2, 2.0, 16).reshape(4, 4)),
        lambda: {
            "optimizer": "sgd",
            "loss": "mse",
            "weighted_metrics": [Range(), "mae"],
        },
        devices=(1,),
        num_micro_batches=(3,),
    )
