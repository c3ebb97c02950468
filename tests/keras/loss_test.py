"""Losses over micro-batches are plain Keras's: from logits, masked, several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.support.cases import exhaustive

_ROWS = 12


def _train(
    make: Callable[[], keras.Model],
    x: Any,
    y: Any,
    num_micro_batches: int,
    **given: Any,
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Returns the history and the weights after a step; M = 0 for plain Keras."""
    keras.utils.set_random_seed(1)
    model = trained = make()
    if num_micro_batches:
        trained = PipelinedModel(model, num_micro_batches=num_micro_batches)
    weights = given.pop("sample_weight", None)
    trained.compile(keras.optimizers.SGD(0.1), **given)
    fit = trained.fit(
        x, y, sample_weight=weights, batch_size=_ROWS, shuffle=False, verbose=0
    )
    return fit.history, model.get_weights()


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(_ROWS, *shape)).astype("float32")


def _labels(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, (_ROWS, *shape))


def _tokens() -> np.ndarray:
    tokens = np.random.default_rng(2).integers(1, 9, (_ROWS, 6))
    for i, row in enumerate(tokens):
        row[1 + i % 6 :] = 0
    return tokens


def _extreme(activation: Any, early: bool = False) -> Callable[[], keras.Model]:
    """Returns a classifier with logits whose probabilities are 0 and 1 in float32.

    Its first output, if `early`, is passed on by two later cells.
    """

    def make() -> keras.Model:
        x = keras.Input((5,))
        big = keras.initializers.RandomNormal(stddev=100.0)
        head = layers.Dense(4, activation, kernel_initializer=big)(x)
        if not early:
            return keras.Model(x, head)
        y = layers.Dense(3)(layers.Dense(5)(head))
        return keras.Model(x, [head, y])

    return make


def _one_hot() -> np.ndarray:
    return np.eye(4, dtype="float32")[_labels()]


_LOGITS: dict[str, tuple[Any, Callable[[], np.ndarray], str]] = {
    "softmax": ("softmax", _labels, "sparse_categorical_crossentropy"),
    "sigmoid": ("sigmoid", _one_hot, "binary_crossentropy"),
    "TensorFlow's softmax": (tf.nn.softmax, _one_hot, "categorical_crossentropy"),
    # Keras takes logits from the first, and not from the second.
    "softmax of binary labels": ("softmax", _one_hot, "binary_crossentropy"),
    "TensorFlow's, binary": (tf.nn.softmax, _one_hot, "binary_crossentropy"),
}


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "TensorFlow's, binary",
        *map(
            exhaustive, ["sigmoid", "TensorFlow's softmax", "softmax of binary labels"]
        ),
    ],
)
def test_crossentropies_are_taken_from_logits(name: str) -> None:
    activation, labels, loss = _LOGITS[name]
    given = {"loss": loss, "metrics": [loss]}
    plain, found = (
        _train(_extreme(activation), _numbers(5), labels(), m, **given) for m in (0, 1)
    )
    assert plain[0] == found[0]
    for x, y in zip(plain[1], found[1], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("num_micro_batches", [exhaustive(1), 5])
def test_logits_of_an_early_output_reach_the_loss(num_micro_batches: int) -> None:
    losses = ["sparse_categorical_crossentropy", "mse"]
    y = [_labels(), _numbers(3)]
    plain, found = (
        _train(_extreme("softmax", early=True), _numbers(5), y, m, loss=losses)
        for m in (0, num_micro_batches)
    )
    assert plain[0]["loss"][0] > 50.0  # From probabilities it is at most 16.
    np.testing.assert_allclose(found[0]["loss"], plain[0]["loss"], rtol=1e-5)


def _masked() -> keras.Model:
    tokens, numbers = keras.Input((6,), dtype="int32"), keras.Input((6, 3))
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    y = layers.Masking()(numbers)
    z = layers.Dense(4, name="labels")(x)
    outputs = [z, layers.Dense(2, name="pairs")(y), layers.Dense(1, name="one")(z)]
    return keras.Model([tokens, numbers], outputs)


def _masked_inputs() -> list[np.ndarray]:
    numbers = _numbers(6, 3)
    numbers[:, 4:] = 0.0
    numbers[:5, 1:] = 0.0
    return [_tokens(), numbers]


def _classes(**given: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **given)


_SEVERAL: dict[str, Callable[[], dict[str, Any]]] = {
    "masks": lambda: {"loss": [_classes(), "mse", "mae"]},
    "weights": lambda: {
        "loss": [
            _classes(reduction="mean_with_sample_weight"),
            keras.losses.MeanSquaredError(reduction="sum"),
            "mae",
        ],
        "loss_weights": [0.5, 0.1, 2.0],
        "sample_weight": [np.linspace(0.1, 2.0, _ROWS * 6).reshape(_ROWS, 6)] * 3,
    },
}


@pytest.mark.parametrize(
    ("name", "num_micro_batches"),
    [("masks", 5), exhaustive("masks", 1), *(exhaustive("weights", m) for m in (1, 5))],
)
def test_several_losses_with_masks(name: str, num_micro_batches: int) -> None:
    y = [_labels(6), _numbers(6, 2), _numbers(6, 1)]
    plain, found = (
        _train(_masked, _masked_inputs(), y, m, **_SEVERAL[name]())
        for m in (0, num_micro_batches)
    )
    for key, value in plain[0].items():
        np.testing.assert_allclose(found[0][key], value, rtol=1e-5, err_msg=key)
    for a, b in zip(plain[1], found[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_ignored_class_counts_nowhere() -> None:
    def make() -> keras.Model:
        x = keras.Input((6, 3))
        return keras.Model(x, layers.Dense(4)(x))

    y = np.where(_tokens() > 3, 0, _labels(6))
    plain, found = (
        _train(make, _numbers(6, 3), y, m, loss=_classes(ignore_class=0))
        for m in (0, 4)
    )
    np.testing.assert_allclose(plain[0]["loss"], found[0]["loss"], rtol=1e-6)
    for a, b in zip(plain[1], found[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_masks_that_depend_on_weights_are_refused_with_several_losses() -> None:
    def make() -> keras.Model:
        x = keras.Input((6, 3))
        y = layers.Masking()(layers.Dense(3, activation="relu")(x))
        return keras.Model(x, [layers.Dense(2)(y), layers.Dense(1)(y)])

    y = [_numbers(6, 2), _numbers(6, 1)]
    with pytest.raises(ValueError, match="loss"):
        _train(make, _numbers(6, 3), y, 2, loss=["mse", "mae"])
