from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.layer_norm import LayerNormLayer


def norm(**params: Any) -> Any:
    return LayerNormLayer.Params().Set(name="norm", dim=8, **params).Instantiate()


def textbook(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def draw(shape: list[int], seed: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 1], dtype=tf.float64)


@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_the_textbooks(has_scale: bool, has_bias: bool) -> None:
    layer = norm(dtype=tf.float64, has_scale=has_scale, has_bias=has_bias)
    assert list(layer.vars) == ["beta"] * has_bias + ["gamma"] * has_scale
    x = draw([2, 3, 8], 1) * 2.0 + 5.0
    want = textbook(x.numpy())
    for i, (name, variable) in enumerate(layer.vars.items()):
        variable.assign(draw([8], 2 + i))
        want = want * variable if name == "gamma" else want
    want = want + layer.vars.beta if has_bias else want
    np.testing.assert_allclose(layer(x), want, rtol=1e-10)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_moments_are_taken_in_float32(dtype: tf.DType) -> None:
    """In 16 bits the variance would vanish next to the mean, or overflow."""
    layer = norm(dtype=tf.float32, fprop_dtype=dtype)
    x = tf.cast(draw([4, 8], 1) * 30.0 + 1000.0, dtype)
    y = layer(x)
    assert y.dtype == dtype
    want = textbook(tf.cast(x, tf.float64).numpy())
    np.testing.assert_allclose(tf.cast(y, tf.float64), want, rtol=0.01, atol=1e-3)


def test_equal_numbers_become_zero() -> None:
    np.testing.assert_array_equal(norm()(tf.fill([2, 8], 3.0)), np.zeros([2, 8]))
