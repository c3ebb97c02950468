"""Logits, and the loss of each token, against the textbook in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.models.transformer.logits import LogitsLayer, token_metrics
from lingvo_pipe.nested_map import NestedMap
from tests.support.errors import fails


def logits_layer(**params: Any) -> Any:
    p = LogitsLayer.Params().Set(name="logits", num_tokens=5, model_dim=4)
    return p.Set(**params).Instantiate()


def hidden(dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal([2, 3, 4], [1, 2]) * 3.0, dtype)


def run(layer: Any, x: tf.Tensor) -> Any:
    return layer.FProp(layer.theta, NestedMap(target=NestedMap(hidden=x)))


def test_logits_are_products_with_the_rows_of_the_table() -> None:
    layer = logits_layer(has_bias=True)
    layer.vars.b.assign([1.0, -1.0, 2.0, 0.5, 0.0])
    want = hidden().numpy() @ layer.vars.w.numpy().T + layer.vars.b.numpy()
    np.testing.assert_allclose(run(layer, hidden()), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "clip", "slope"),
    [
        (
            "logits_soft_max",
            lambda x: 1.5 * np.tanh(x / 1.5),
            lambda x: 1.0 - np.tanh(x / 1.5) ** 2,
        ),
        (
            "logits_abs_max",
            lambda x: np.clip(x, -1.5, 1.5),
            lambda x: np.abs(x) < 1.5,
        ),
    ],
)
def test_only_soft_clipping_has_a_gradient_everywhere(
    name: str, clip: Any, slope: Any
) -> None:
    plain, layer, x = logits_layer(), logits_layer(**{name: 1.5}), hidden()
    with tf.GradientTape() as tape:
        tape.watch(x)
        clipped = run(layer, x)
    whole = run(plain, x).numpy()
    assert np.max(np.abs(whole)) > 3.0
    np.testing.assert_allclose(clipped, clip(whole), rtol=1e-5)
    want = slope(whole) @ layer.vars.w.numpy()
    np.testing.assert_allclose(tape.gradient(clipped, x), want, rtol=1e-3, atol=1e-5)


def test_tokens_beyond_the_vocabulary_are_impossible() -> None:
    layer, x = logits_layer(), hidden()
    whole = run(layer, x).numpy()
    size = whole.shape[-1] - 2
    with ForwardContext(vocabulary_size=size):
        limited = run(layer, x).numpy()
    np.testing.assert_array_equal(limited[..., :size], whole[..., :size])
    assert (limited[..., size:] == -np.inf).all()


def test_clipping_is_done_in_float32() -> None:
    layer = logits_layer(
        dtype=tf.float32, fprop_dtype=tf.bfloat16, logits_soft_max=200.0
    )
    plain = logits_layer(dtype=tf.float32, fprop_dtype=tf.bfloat16)
    whole, clipped = run(plain, hidden()), run(layer, hidden())
    assert whole.dtype == clipped.dtype == tf.float32
    np.testing.assert_allclose(clipped, 200.0 * np.tanh(whole / 200.0), rtol=1e-6)
    assert run(logits_layer(dtype=tf.float64), hidden()).dtype == tf.float64


@pytest.mark.parametrize("name", ["logits_soft_max", "logits_abs_max"])
def test_a_threshold_must_be_positive(name: str) -> None:
    with fails(path=f"logits.{name}", got=0.0):
        logits_layer(**{name: 0.0})


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
