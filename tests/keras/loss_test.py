"""Losses over micro-batches are plain Keras's: from logits, masked, several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.loss import NoLoss
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.toy_models import numbers
from tests.support.cases import exhaustive
from tests.support.errors import fails

_ROWS = 12


def _check(
    make: Callable[[], keras.Model],
    data: Any,
    number: int,
    tolerance: float = 1e-5,
    **compiled: Any,
) -> None:
    assert_pipelined_equals_plain(
        make,
        data,
        lambda: {"optimizer": keras.optimizers.SGD(0.1), **compiled},
        batch_size=_ROWS,
        epochs=1,
        devices=(1,),
        num_micro_batches=(number,),
        tolerance=tolerance,
    )


def _labels(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, (_ROWS, *shape))


def _lengths(values: np.ndarray) -> np.ndarray:
    """Returns the values with 0 after 1 to 6 of the timesteps."""
    for i, row in enumerate(values):
        row[1 + i % 6 :] = 0
    return values


def _extreme(activation: Any, early: bool = False) -> keras.Model:
    """Returns a classifier with logits whose probabilities are 0 and 1 in float32.

    Its first output, if `early`, is passed on by two later cells.
    """
    x = keras.Input((5,))
    big = keras.initializers.RandomNormal(stddev=100.0)
    head = layers.Dense(4, activation, kernel_initializer=big)(x)
    if not early:
        return keras.Model(x, head)
    return keras.Model(x, [head, layers.Dense(3)(layers.Dense(5)(head))])


@pytest.mark.parametrize(
    ("activation", "loss"),
    [
        exhaustive("softmax", "sparse_categorical_crossentropy"),
        # Keras takes logits from its softmax, and not from TensorFlow's.
        (tf.nn.softmax, "binary_crossentropy"),
        exhaustive("softmax", "binary_crossentropy"),
        exhaustive("sigmoid", "binary_crossentropy"),
        exhaustive(tf.nn.softmax, "categorical_crossentropy"),
    ],
)
def test_crossentropies_are_taken_from_logits(activation: Any, loss: str) -> None:
    y = _labels() if loss.startswith("sparse") else np.eye(4)[_labels()]
    data = numbers(_ROWS, 5), y
    _check(lambda: _extreme(activation), data, 1, 0.0, loss=loss, metrics=[loss])


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [1, 5])
def test_logits_of_an_early_output_reach_the_loss(number: int) -> None:
    """From probabilities, the loss is at most 16."""
    data = numbers(_ROWS, 5), [_labels(), numbers(_ROWS, 3)]
    losses = ["sparse_categorical_crossentropy", "mse"]
    _check(lambda: _extreme("softmax", early=True), data, number, loss=losses)
    model: Any = _extreme("softmax")
    model.compile(loss=losses[0])
    assert model.evaluate(data[0], data[1][0], verbose=0) > 50.0


def _masked() -> keras.Model:
    tokens, vectors = keras.Input((6,), dtype="int32"), keras.Input((6, 3))
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    z = layers.Dense(4, name="labels")(x)
    pairs = layers.Dense(2, name="pairs")(layers.Masking()(vectors))
    return keras.Model([tokens, vectors], [z, pairs, layers.Dense(1, name="one")(z)])


def _classes(**options: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("weighted", "number"),
    [(False, 5), (False, 1), (True, 1), (True, 5)],
)
def test_several_losses_with_masks(weighted: bool, number: int) -> None:
    tokens = _lengths(np.random.default_rng(2).integers(1, 9, (_ROWS, 6)))
    x = [tokens, _lengths(numbers(_ROWS, 6, 3))[::-1]]
    y = [_labels(6), numbers(_ROWS, 6, 2), numbers(_ROWS, 6, 1)]
    if not weighted:
        _check(_masked, (x, y), number, loss=[_classes(), "mse", "mae"])
        return
    losses = [
        _classes(reduction="mean_with_sample_weight"),
        keras.losses.MeanSquaredError(reduction="sum"),
        "mae",
    ]
    weights = [np.linspace(0.1, 2.0, _ROWS * 6).reshape(_ROWS, 6)] * 3
    _check(_masked, (x, y, weights), number, loss=losses, loss_weights=[0.5, 0.1, 2.0])


def _dense() -> keras.Model:
    return keras.Sequential([keras.Input((6, 3)), layers.Dense(4)])


def test_an_ignored_class_counts_nowhere() -> None:
    data = numbers(_ROWS, 6, 3), _lengths(_labels(6))
    _check(_dense, data, 4, loss=_classes(ignore_class=0))


def test_masks_that_depend_on_weights_are_refused_with_several_losses() -> None:
    x = keras.Input((6, 3))
    y = layers.Masking()(layers.Dense(3, activation="relu")(x))
    model = keras.Model(x, [layers.Dense(2)(y), layers.Dense(1)(y)])
    trained: Any = PipelinedModel(model, num_micro_batches=2)
    trained.compile("sgd", loss=["mse", "mae"])
    with fails(path="compile(loss=...)") as info:
        trained.fit(np.ones((4, 6, 3)), [np.ones((4, 6, 2)), np.ones((4, 6, 1))])
    assert "exact_losses=True" in info.value.hint


def test_no_loss_reads_no_number_of_the_outputs() -> None:
    """It summed up zeros for all of them."""
    with tf.Graph().as_default() as graph:
        NoLoss()(None, [tf.compat.v1.placeholder(tf.bfloat16, [2, 3])])
    sums = [op for op in graph.get_operations() if op.type == "Sum"]
    assert [op.inputs[0].shape.num_elements() for op in sums] == [0]
    x = tf.fill([2, 3], np.nan)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = NoLoss()(None, [x])
    assert float(loss) == 0.0
    np.testing.assert_array_equal(tape.gradient(loss, x), tf.zeros([2, 3]))
