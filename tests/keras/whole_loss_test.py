"""Losses that mix examples are plain Keras's at any number of micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.core.errors import UserAssertionError
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.keras.whole_loss import stand_in, whole_loss
from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.support.cases import exhaustive, fast_cases
from tests.support.errors import fails

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(16, 6)).astype("float32")
_LABELS = _RANDOM.integers(0, 3, 16)
_MASKS = _RANDOM.integers(0, 2, (16, 3)).astype("float32")


class _AddsLoss(layers.Layer):
    """Adds a loss, and keeps a mean of what it is given."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(), trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x))
        return x


def _model(number: int = 1, activation: str | None = "sigmoid", **options: Any) -> Any:
    x = keras.Input((6,))
    y = layers.Dense(8, activation="tanh", kernel_regularizer="l2", **options)(x)
    y = _AddsLoss()(layers.Dropout(0.3, seed=1)(y))
    outputs = [layers.Dense(3, activation=activation)(y) for _ in range(number)]
    return keras.Model(x, outputs if number > 1 else outputs[0])


def _small_model() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="sigmoid")])


def _compiled(loss: Any, **options: Any) -> Callable[[], dict[str, Any]]:
    sgd = keras.optimizers.SGD
    return lambda: {"optimizer": sgd(0.05, 0.9), "loss": loss, **options}


def _masked(y_true: Any, y_pred: Any) -> Any:
    """Returns a mean over the examples that have a label, as tutorials do."""
    mask = keras.ops.cast(keras.ops.not_equal(y_true, -1), "float32")
    loss = keras.losses.sparse_categorical_crossentropy(
        keras.ops.maximum(y_true, 0), y_pred, from_logits=True
    )
    mask = keras.ops.reshape(mask, keras.ops.shape(loss))
    return keras.ops.sum(loss * mask) / keras.ops.sum(mask)


def _of_pairs(y_true: Any, y_pred: Any) -> Any:
    """Returns a loss of groups of four examples, which halves of a trial are not."""
    groups = keras.ops.reshape(y_pred, (-1, 4, 3))
    return keras.ops.std(groups, axis=(1, 2))


class _Weighted(keras.losses.Loss):
    """A loss that divides by the weights in its own way."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss = keras.ops.mean(keras.ops.square(y_true - y_pred), -1)
        return keras.ops.sum(loss * sample_weight) / keras.ops.sum(sample_weight)


def _perceptual() -> Callable[[Any, Any], Any]:
    """Returns a loss between what a frozen model makes of targets and of outputs."""
    features = layers.Dense(5, activation="tanh", kernel_initializer=_fixed)
    features.build((None, 3))
    square = keras.ops.square
    return lambda y, z: keras.ops.mean(square(features(y) - features(z)), -1)


def _fixed(shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
    return np.linspace(-1, 1, 15, dtype=dtype).reshape(shape)


def _worst(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.max(keras.losses.sparse_categorical_crossentropy(y_true, y_pred))


def _scaled() -> dict[str, Any]:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), 64.0)
    return {"optimizer": optimizer, "loss": "dice"}


_CASES: dict[str, tuple[Any, Any, Any]] = {
    "masked labels": (
        lambda: _model(activation=None),
        np.where(_RANDOM.random(16) < 0.6, -1, _LABELS),
        _compiled(_masked),
    ),
    "several": (
        lambda: _model(2),
        [_MASKS, _MASKS],
        lambda: _compiled(
            ["tversky", _perceptual()],
            loss_weights=[0.3, 2.0],
            metrics=[["mae"], ["auc"]],
        )(),
    ),
    "a frozen model": (_model, _MASKS, lambda: _compiled(_perceptual())()),
    "logits": (lambda: _model(activation="softmax"), _LABELS, _compiled(_worst)),
    "groups": (_model, _MASKS, _compiled(_of_pairs)),
    "loss scaling": (lambda: _model(dtype="mixed_float16"), _MASKS, _scaled),
}


@pytest.mark.parametrize("name", fast_cases(_CASES, ["several"]))
def test_it_is_exact_for_micro_batches(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, y, compile_args = _CASES[name]
    assert_pipelined_equals_plain(
        make,
        (_X, y),
        compile_args,
        devices=(2,) if name == "several" else (1, 2),
        num_micro_batches=(4,),
        tolerance=2e-2 if name == "loss scaling" else 1e-4,
    )
    assert "may mix" not in "".join(
        x.getMessage() for x in caplog.records if x.levelname == "WARNING"
    )


@pytest.mark.exhaustive
def test_weights_may_be_used_in_another_way() -> None:
    assert_pipelined_equals_plain(
        _model,
        (_X, _MASKS, np.linspace(0.1, 2.0, 16)),
        _compiled(_Weighted()),
        epochs=1,
        num_micro_batches=(4,),
    )


@pytest.mark.exhaustive
def test_gradients_of_half_precision_do_not_vanish() -> None:
    """Each of many classes has a small gradient: scaled too late, it was 0."""

    def make() -> keras.Model:
        kernels = layers.Dense(8), layers.Dense(2000, use_bias=True)
        return keras.Sequential([keras.Input((6,)), *kernels])

    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        assert_pipelined_equals_plain(
            make,
            (np.repeat(_X, 16, axis=0), np.repeat(_LABELS, 16)),
            _compiled(keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
            batch_size=128,
            devices=(1,),
            num_micro_batches=(4,),
            tolerance=5e-3,
            exact_losses=True,
        )
    finally:
        keras.config.set_dtype_policy(policy)


@pytest.mark.parametrize("exact", [exhaustive(True), False])
def test_a_choice_of_ones_own(exact: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Losses are exact or not, as asked for, with a warning if one is not."""
    options: Any = {"num_micro_batches": (4,), "devices": (1,), "exact_losses": exact}
    make: Any = _model if exact else _small_model
    model_and_data = make, (_X, _MASKS), _compiled("dice")
    with contextlib.nullcontext() if exact else fails(UserAssertionError):
        assert_pipelined_equals_plain(*model_and_data, **options)
    assert ("may mix" in caplog.text) == (not exact)


def test_a_word_that_is_none() -> None:
    with fails(path="PipelinedModel(exact_losses=...)", got="always"):
        PipelinedModel(_model(), exact_losses="always")


def test_a_loss_of_64_bits_keeps_them() -> None:
    """It was reported in 32 bits."""
    outputs = [tf.constant([[0.1], [0.2]], tf.float64), None, None]
    whole = whole_loss(outputs, lambda triples: tf.reduce_sum(triples[0]))
    mean = stand_in(outputs, whole, tf.constant(0.5))
    assert float(mean) == pytest.approx(0.1 + 0.2, rel=1e-15)
    assert whole.values.dtype == mean.dtype == tf.float64
