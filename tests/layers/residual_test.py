from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.residual import ResidualLayer


def residual(**params: Any) -> Any:
    body = FCLayer.Params().Set(input_dim=4, output_dim=4)
    p = ResidualLayer.Params().Set(name="part", dim=4, body=body, dtype=tf.float64)
    return p.Set(**params).Instantiate()


def draw() -> tf.Tensor:
    return tf.random.stateless_normal([3, 5, 4], [1, 2], dtype=tf.float64)


def test_the_norm_is_first() -> None:
    layer, x = residual(), draw()
    np.testing.assert_allclose(layer(x), x + layer.body(layer.norm(x)), rtol=1e-12)


def test_or_the_norm_is_last() -> None:
    layer, x = residual(norm_first=False), draw()
    np.testing.assert_allclose(layer(x), layer.norm(x + layer.body(x)), rtol=1e-12)


def test_dropout_leaves_the_inputs() -> None:
    layer, x = residual(keep_prob=0.5), draw()
    change = layer.body(layer.norm(x))
    with ForwardContext(step=1, first_example=0):
        y = layer(x)
    is_kept = np.isclose(y, x + 2.0 * change)
    np.testing.assert_allclose(y, np.where(is_kept, x + 2.0 * change, x), rtol=1e-12)
    assert 0.2 < is_kept.mean() < 0.8
