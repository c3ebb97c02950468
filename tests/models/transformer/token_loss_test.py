"""The loss by token against the textbook, in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models.transformer.token_loss import token_metrics

LABELS = np.array([[0, 3, 1], [1, 2, 0]])
WEIGHTS = np.array([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0]])


def logits(dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal([2, 3, 4], [1, 2]) * 3.0, dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float64, 1e-12), (tf.float32, 1e-5)]
)
def test_losses_and_gradient(
    smoothing: float, dtype: tf.DType, tolerance: float
) -> None:
    x = logits(dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        metrics = token_metrics(x, LABELS, WEIGHTS, smoothing)
        loss = metrics.loss[0]
    numbers, total = x.numpy().astype(np.float64), WEIGHTS.sum()
    shares = np.exp(numbers) / np.exp(numbers).sum(-1, keepdims=True)
    sharp = np.eye(4)[LABELS]
    smooth = (1 - smoothing) * sharp + smoothing / 4

    def mean(targets: np.ndarray) -> float:
        return float((-(targets * np.log(shares)).sum(-1) * WEIGHTS).sum() / total)

    assert float(loss) == pytest.approx(mean(smooth), rel=tolerance)
    assert float(metrics.log_pplx[0]) == pytest.approx(mean(sharp), rel=tolerance)
    assert [float(weight) for _, weight in metrics.values()] == [total] * 3
    gradient = (shares - smooth) * WEIGHTS[..., np.newaxis] / total
    np.testing.assert_allclose(
        tape.gradient(loss, x), gradient, rtol=tolerance, atol=tolerance
    )


def test_accuracy_is_how_often_the_label_is_the_largest() -> None:
    metrics = token_metrics(tf.one_hot([[0, 0, 1], [1, 3, 0]], 4), LABELS, WEIGHTS)
    assert float(metrics.accuracy[0]) == pytest.approx((1.0 + 2.0) / 5.0)


def test_the_mean_over_no_tokens_is_zero() -> None:
    metrics = token_metrics(logits(tf.float32), LABELS, 0.0 * WEIGHTS, 0.1)
    assert [float(mean) for mean, _ in metrics.values()] == [0.0] * 3


def test_halves_of_a_vocabulary_in_16_bits_are_summed_in_float32() -> None:
    x = tf.zeros([2, 3, 4096], tf.bfloat16)
    loss = token_metrics(x, LABELS, WEIGHTS, 0.1).loss[0]
    assert loss.dtype == tf.float32
    assert float(loss) == pytest.approx(np.log(4096), rel=1e-6)
