"""The loss against the textbook, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.softmax_cross_entropy import (
    check_label_smoothing,
    softmax_cross_entropy,
)
from tests.support.errors import fails

LABELS = np.array([0, 3, 1, 1, 2])
WEIGHTS = np.array([1.0, 0.0, 2.0, 0.5, 1.0])


def logits(dtype: tf.DType = tf.float64) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal([5, 4], [1, 2]) * 3.0, dtype)


def textbook(x: np.ndarray, smoothing: float) -> tuple[float, np.ndarray]:
    """The loss and its gradient."""
    targets = np.eye(4)[LABELS] * (1 - smoothing) + smoothing / 4
    probabilities = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    losses = -(targets * np.log(probabilities)).sum(-1)
    share = WEIGHTS / WEIGHTS.sum()
    return float(losses @ share), (probabilities - targets) * share[:, None]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(tf.float64, 1e-12), (tf.float32, 1e-5), (tf.bfloat16, 1e-5)],
)
def test_loss_and_gradient(smoothing: float, dtype: tf.DType, tolerance: float) -> None:
    x = logits(dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        metrics = softmax_cross_entropy(x, LABELS, WEIGHTS, smoothing)
        loss, total = metrics.loss
    expected, gradient = textbook(tf.cast(x, tf.float64).numpy(), smoothing)
    assert float(loss) == pytest.approx(expected, rel=tolerance)
    assert float(total) == WEIGHTS.sum()
    assert loss.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
    actual = tf.cast(tape.gradient(loss, x), tf.float64)
    rounding = 0.01 if dtype == tf.bfloat16 else tolerance
    np.testing.assert_allclose(actual, gradient, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
def test_labels_are_integers_of_any_width(dtype: type) -> None:
    got = softmax_cross_entropy(logits(), LABELS.astype(dtype), WEIGHTS, 0.1)
    want = softmax_cross_entropy(logits(), LABELS, WEIGHTS, 0.1)
    tf.nest.map_structure(np.testing.assert_array_equal, got, want)


def test_labels_that_are_floats_are_refused() -> None:
    with fails(path="labels", got="float64 (5,)"):
        softmax_cross_entropy(logits(), LABELS.astype(float), WEIGHTS)


def test_accuracy_is_weighted() -> None:
    x = tf.one_hot([0, 0, 1, 2, 2], 4)
    accuracy, total = softmax_cross_entropy(x, LABELS, WEIGHTS).accuracy
    assert float(accuracy) == pytest.approx((1.0 + 2.0 + 1.0) / 4.5)
    assert float(total) == 4.5


def test_examples_of_weight_zero_do_not_count() -> None:
    x = logits().numpy()
    x[1] = 1e6
    changed = softmax_cross_entropy(tf.constant(x), LABELS, WEIGHTS)
    before = softmax_cross_entropy(logits(), LABELS, WEIGHTS)
    assert float(changed.loss[0]) == float(before.loss[0])
    assert float(changed.accuracy[0]) == float(before.accuracy[0])


def test_the_mean_over_no_examples_is_zero() -> None:
    x = logits()
    with tf.GradientTape() as tape:
        tape.watch(x)
        metrics = softmax_cross_entropy(x, LABELS, np.zeros(5))
    for mean, total in metrics.values():
        assert (float(mean), float(total)) == (0.0, 0.0)
    np.testing.assert_array_equal(tape.gradient(metrics.loss[0], x), np.zeros([5, 4]))


def test_halves_add_up_to_the_whole() -> None:
    x = logits()
    parts = [
        softmax_cross_entropy(x[s], LABELS[s], WEIGHTS[s], 0.1)
        for s in (slice(2), slice(2, None))
    ]
    whole = softmax_cross_entropy(x, LABELS, WEIGHTS, 0.1)
    for name, (mean, total) in whole.items():
        sums = [part[name][0] * part[name][1] for part in parts]
        assert float(sum(sums)) == pytest.approx(float(mean * total), rel=1e-12)


def test_further_dimensions_may_follow() -> None:
    flat = softmax_cross_entropy(logits()[:4], LABELS[:4], WEIGHTS[:4], 0.1)
    square = softmax_cross_entropy(
        tf.reshape(logits()[:4], [2, 2, 4]),
        LABELS[:4].reshape(2, 2),
        WEIGHTS[:4].reshape(2, 2),
        0.1,
    )
    tf.nest.map_structure(np.testing.assert_allclose, flat, square)


def test_large_logits_do_not_overflow() -> None:
    x = tf.constant([[1e30, 0.0, -1e30, 0.0]] * 5)
    loss = softmax_cross_entropy(x, np.zeros(5, int), WEIGHTS, 0.0).loss[0]
    assert float(loss) == 0.0


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_is_an_error(label: int) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"label.* {label} .*\[0, 4\)"
    ):
        softmax_cross_entropy(logits(), np.full(5, label), WEIGHTS)


def test_label_smoothing_is_a_share() -> None:
    check_label_smoothing(0.0)
    refused: list[Any] = [-0.1, 1.0, None, "0.1"]
    for value in refused:
        with fails(path="label_smoothing", got=value):
            check_label_smoothing(value)
